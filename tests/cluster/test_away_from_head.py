"""Every phase on a cluster whose head has no CPU and whose nodes come and go: nothing is computed on the head."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.documents import write_yaml
from raynas.space import load_space
from tests.cluster.simulated import SimulatedCluster, autoscaling_cluster
from tests.cluster.test_growing import wait_for_nodes
from tests.scoring.test_calibrated_scores import make_hybrid_run
from tests.small_run import SPACE, small_run

ROOT = Path(__file__).parents[2]
HEAD = """
import sys
from raynas.commands.main import main
from raynas.nets.supernet import Supernet

def refuse(self, x, *arguments, **options):
    images = x.shape[0]
    if x.device.type != "meta" and type(images) is int and images > 3:  # an export compares its files on three images
        raise RuntimeError(f"{images} images are passed forward on the head")
    return whole(self, x, *arguments, **options)

whole, Supernet.forward = Supernet.forward, refuse
sys.exit(main(sys.argv[1:]))
"""
"""The command, in a process in which networks refuse to work."""

SHORT = (
    "--set", "recipe.epochs=2", "--set", "recipe.warmup_epochs=0", "--set", "search.evaluations=20",
    "--set", "retrain.recipe.epochs=2", "--set", "retrain.seeds=[0]",
)  # fmt: skip


def on_head(cluster: SimulatedCluster, *command: str) -> str:
    """Run a command on the head, and return its output."""
    code, output = cluster.run(sys.executable, "-c", HEAD, *command, timeout=900, PYTHONPATH=str(ROOT))
    assert code == 0, output
    return output


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_phase_from_no_nodes_and_back(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 2}, most=2, idle_s=15) as cluster:
        assert cluster.raylets() == []
        by_proxy = ("--set", "search.rungs=[{by: naswot, keep: 0.5}]")
        output = on_head(cluster, "pipeline", "digits", "--run", run, *SHORT, *by_proxy)
        assert "wait for 1 CPU (0 of the cluster's 0 are free)" in output, output
        assert len(raynas.open_run(run).network_rows()) == 2  # the winner and the reference
        wait_for_nodes(cluster, 0)
        output = on_head(cluster, "evaluate", run, "--again")
        assert "The test split has been read 6 time(s)" in output, output
        two = ("--set", "retrain.recipe.epochs=2", "--on", "train")
        on_head(cluster, "retrain", run, "--seeds", "2", *two)
        teacher = make_hybrid_run(tmp_path / "teacher", load_space("digits/nasvit"))
        taught = ("--set", f"retrain.recipe.teachers={{models: [{{run: {teacher.path}}}]}}")
        output = on_head(cluster, "retrain", run, "--arch", "digits/deit", *two, *taught)
        assert f"calibrating the batch norms of largest of {teacher.path}" in output, output
        on_head(cluster, "rank", run, "--archs", "16", "--buckets", "2", "--train", "2", "--replicas", "1", *two[:2])
        on_head(cluster, "export", run, "--inherited", "--to", str(tmp_path / "export"), "--no-onnx")
        wait_for_nodes(cluster, 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_tuning_and_ablation_from_no_nodes_and_back(tmp_path: Path) -> None:
    few = ("--set", "recipe.epochs=2", "--set", "recipe.warmup_epochs=0", "--set", "search.evaluations=12")
    write_yaml(
        tmp_path / "ablation.yaml",
        {
            "preset": "digits/preset_tune",
            "set": {"recipe.epochs": 2, "recipe.warmup_epochs": 0, "search.evaluations": 12},
            "rows": {"as it is": {}, "no smoothing": {"recipe.smoothing": 0}},
            "seeds": [0],
            "measure": ["probes", "searched"],
        },
    )
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 2}, most=2, idle_s=15) as cluster:
        assert cluster.raylets() == []
        tuned = str(tmp_path / "tuned")
        on_head(
            cluster, "tune", "digits/preset_tune", "--run", tuned, "--trials", "3", "--set", "tune.pruner=none", *few
        )
        wait_for_nodes(cluster, 0)
        on_head(cluster, "ablate", str(tmp_path / "ablation.yaml"), "--run", str(tmp_path / "ablated"))
        wait_for_nodes(cluster, 0)
    for run, trials in (("tuned", 3), ("ablated", 2)):
        rows = raynas.open_run(str(tmp_path / run)).table("trials").to_pylist()
        assert [row["state"] for row in rows if row["state"] == "finished"] == ["finished"] * trials, rows


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_adapting_from_no_nodes_and_back(tmp_path: Path) -> None:
    small_run(tmp_path / "model").write_arch("best", SPACE.largest())
    run = str(tmp_path / "run")
    few = ("--set", "recipe.epochs=2", "--set", "recipe.warmup_epochs=0", "--set", "search.evaluations=30",
           "--set", "adapt.finetune={always: true, recipe: {epochs: 2}}", "--set", "adapt.untrained=12",
           "--set", "retrain.recipe.epochs=2")  # fmt: skip
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 2}, most=2, idle_s=15) as cluster:
        assert cluster.raylets() == []
        model = ("adapt", str(tmp_path / "model"), "--data", "digits", "--preset", "digits/preset_adapt")
        on_head(cluster, *model, "--run", run, *few)
        wait_for_nodes(cluster, 0)
    found = {row["how"] for row in raynas.open_run(run).table("evaluations").to_pylist()}
    assert found == {"transferred", "inherited", "finetuned"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_lost_during_a_retraining_costs_no_finished_epoch(tmp_path: Path) -> None:
    run, epochs = str(tmp_path / "run"), 40
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        on_head(cluster, "train", "digits", "--run", run, *SHORT)
        process = cluster.start(
            sys.executable, "-c", HEAD, "retrain", run, "--arch", "digits/deit", "--workers", "2", "--on", "train",
            "--set", f"retrain.recipe.epochs={epochs}", PYTHONPATH=str(ROOT),
        )  # fmt: skip
        lines, killed = kill_a_node(cluster, process, f"/{epochs}")
        assert killed and process.wait() == 0, "".join(lines)
        assert any("starting again from the newest checkpoint" in line for line in lines), "".join(lines)
        opened = raynas.open_run(run)
        (network,) = opened.network_rows()
        rows: list[dict[str, Any]] = opened.table("training").to_pylist()
        rows = [row for row in rows if row["what"] == Path(network["path"]).name]
        assert [row["epoch"] for row in rows] == list(range(1, epochs + 1))
        assert {row["workers"] for row in rows} == {2}
        again = [line for line in lines[lines.index(killed) :] if "epoch 1/" in line or "epoch 2/" in line]
        assert not again, "".join(lines)


def kill_a_node(cluster: SimulatedCluster, process: subprocess.Popen[str], at: str) -> tuple[list[str], str | None]:
    """Kill the youngest node once a line tells of a late epoch; return all lines, and that one."""
    assert process.stdout is not None
    lines: list[str] = []
    killed = None
    for line in process.stdout:
        lines.append(line)
        if killed is None and any(f"epoch {epoch}{at}" in line for epoch in range(4, 20)):
            os.kill(cluster.raylets()[-1], signal.SIGKILL)
            killed = line
    return lines, killed
