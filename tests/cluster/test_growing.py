"""Training on a cluster that has no worker nodes at first, and loses one on the way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

import raynas
from raynas.results.schemas import Row
from tests.cluster.simulated import SimulatedCluster, autoscaling_cluster

ROOT = Path(__file__).parents[2]
TRAIN = (sys.executable, "-m", "raynas", "train", "digits", "--workers", "2")


def wait_for_nodes(cluster: SimulatedCluster, count: int) -> None:
    """Wait until there are so many worker nodes, for two minutes at most."""
    for _ in range(120):
        if len(cluster.raylets()) == count:
            return
        time.sleep(1)
    raise AssertionError(f"{len(cluster.raylets())} worker nodes, and not {count}")


@pytest.mark.slow
def test_training_from_no_nodes_and_back(tmp_path: Path) -> None:
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        assert cluster.raylets() == []
        settings = ("--set", "recipe.epochs=2", "--set", "recipe.warmup_epochs=0")
        code, output = cluster.run(*TRAIN, "--run", str(tmp_path / "run"), *settings, PYTHONPATH=str(ROOT))
        assert code == 0, output
        assert "2 worker(s) wait for 2 CPU (0 of the cluster's 0 are free)" in output
        run = raynas.open_run(tmp_path / "run")
        assert [row["epoch"] for row in run.table("training").to_pylist()] == [1, 2]
        assert {row["workers"] for row in run.table("training").to_pylist()} == {2}
        wait_for_nodes(cluster, 0)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_an_evolution_lets_the_cluster_grow_for_trials_side_by_side(tmp_path: Path) -> None:
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        run = tmp_path / "run"
        command = [sys.executable, "-m", "raynas", "evolve-space", "digits/preset_evolution", "--run", str(run)]
        command += ["--workers", "1", "--replicas", "1", "--at-a-time", "2", "--try", "space_evolution.tau=[0.2,0.3]"]
        few = {"iterations": 1, "archs": 8, "fewest": 2}
        settings = ["recipe.epochs=1", "recipe.warmup_epochs=0", *(f"space_evolution.{k}={v}" for k, v in few.items())]
        code, output = cluster.run(*command, *(f"--set={each}" for each in settings), timeout=450, PYTHONPATH=str(ROOT))
        assert code == 0, output
        assert "waiting for 1 CPU (0 of the cluster's 0 are free)" in output
        for tau in (0.2, 0.3):
            trial = raynas.open_run(run / f"trials/tau={tau}")
            assert trial.table("spaces").num_rows == 1 and trial.table("space_scores").num_rows == 8
        began = [row["began"] for tau in (0.2, 0.3) for row in _supernets(run / f"trials/tau={tau}/iterations/0")]
        assert abs((began[0] - began[1]).total_seconds()) < 30  # side by side: there were two nodes
        wait_for_nodes(cluster, 0)


def _supernets(run: Path) -> list[Row]:
    rows: list[Row] = raynas.open_run(run).table("phases").to_pylist()
    return [row for row in rows if row["phase"] == "supernet"]


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_lost_node_costs_no_epoch(tmp_path: Path) -> None:
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        process = cluster.start(
            *TRAIN, "--run", str(tmp_path / "run"), "--set", "recipe.epochs=30", PYTHONPATH=str(ROOT)
        )
        assert process.stdout is not None
        lines, killed = [], False
        for line in process.stdout:
            lines.append(line)
            if not killed and "epoch " in line and "/30" in line:  # there are two nodes, with one worker each
                os.kill(cluster.raylets()[-1], signal.SIGKILL)
                killed = True
        assert killed
        assert process.wait() == 0, "".join(lines)
        epochs = [row["epoch"] for row in raynas.open_run(tmp_path / "run").table("training").to_pylist()]
        assert epochs == list(range(1, 31))
        assert any("starting again from the newest checkpoint" in line for line in lines), "".join(lines)
