"""A pipeline, an adapting and a space evolution whose process is killed, with their Ray: they end as if never."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from raynas.documents import write_yaml
from raynas.presets.preset import override
from raynas.runs.run import Run
from tests.cluster.test_local_ray import environment, processes
from tests.small_run import PRESET, SPACE, small_run

TINY = {
    "retrain.recipe": {"epochs": 1},
    "recipe.teachers": {"models": [{"network": "original"}]},
    "adapt": {"images": 32, "untrained": 12, "head": "new"},
    "space_evolution": {"iterations": 1, "archs": 12, "fewest": 1},
}

KILLED_AT: dict[str, tuple[str, ...]] = {
    "pipeline": ("supernet.json", "tables/scores/*.parquet", "tables/networks/*.parquet"),
    "adapt": ("networks/*-pretrained/arch.yaml", "start.json", "supernet.json"),
    "evolve-space": ("iterations/0/preset.yaml", "iterations/0/tables/scores/*.parquet"),
}
"""Files whose appearance is the moment of each kill."""

RESULTS: dict[str, tuple[str, ...]] = {
    "training": ("what", "epoch", "loss"),
    "scores": ("arch", "status", "accuracy", "loss", "images"),
    "correct": ("arch", "top1"),
    "networks": ("arch", "how", "seed", "path", "weights"),
    "evaluations": ("arch", "how", "weights", "accuracy"),
    "rankings": ("x", "y", "bucket", "statistic", "value", "lower", "upper", "networks"),
    "trials": ("number", "name", "values", "state", "results"),
    "trial_steps": ("number", "step", "value"),
    "spaces": ("iteration", "cardinality", "error", "best", "ended"),
    "space_scores": ("iteration", "arch", "accuracy"),
    "space_moves": ("iteration", "axis", "steps", "after"),
}
"""Columns of the tables that have to be the same."""


def started(command: str, folder: Path, run: str, mark: str) -> subprocess.Popen[bytes]:
    preset = str(folder / "preset.yaml")
    what = [str(folder / "model"), "--preset", preset] if command == "adapt" else [preset]
    # What adapting adds is the same with and without Ray, whose parts in it the pipeline has, too.
    count = "0" if command == "adapt" else "1"
    words = [command, *what, "--run", str(folder / run), "--workers", count, "--replicas", count]
    with (folder / "output.txt").open("w") as output:  # no pipe: Ray's processes hold it for a while longer
        return subprocess.Popen(
            [sys.executable, "-m", "raynas", *words],
            env=environment(**{mark: "1", "OMP_NUM_THREADS": "1"}),
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def results(root: Path) -> dict[str, Any]:
    """Return what a run, and every run within it, came to; rows that only say that a trial began are left out.

    So are the epochs of pruned trials: how many they train before they hear of it is a matter of moments.
    """
    found: dict[str, Any] = {}
    pruned = {row["run"] for row in Run(root).table("trials").to_pylist() if row["state"] == "pruned"}
    for marker in root.rglob("raynas.yaml"):
        where = str(marker.parent.relative_to(root))
        if where in ("tune", "model"):
            continue
        run = Run(marker.parent)
        for table, columns in RESULTS.items():
            if table == "training" and where in pruned:
                continue
            rows = run.table(table, list(columns)).to_pylist()
            if table == "trials":  # the newest row of a trial counts
                rows = list({row["number"]: row for row in rows}.values())
            found[f"{where}/{table}"] = sorted(str(row) for row in rows if row.get("state") != "running")
        for file in ("best/arch.yaml", "export/arch.yaml", "spaces/best.yaml"):
            found[f"{where}/{file}"] = run.read_bytes(file) if run.exists(file) else None
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", KILLED_AT)
def test_killed_and_run_again_it_ends_as_if_never_killed(command: str, tmp_path: Path) -> None:
    tiny = {
        name: value for name, value in TINY.items() if command == "adapt" or name not in ("recipe.teachers", "adapt")
    }
    write_yaml(tmp_path / "preset.yaml", override(PRESET, tiny).model_dump(mode="json", exclude_unset=True))
    if command == "adapt":
        small_run(tmp_path / "model").write_arch("best", SPACE.largest())
    mark = f"RAYNAS_KILLED_{time.monotonic_ns()}"
    try:
        for moment in KILLED_AT[command]:
            process = started(command, tmp_path, "run", mark)
            while not list((tmp_path / "run").glob(moment)):
                assert process.poll() is None, (tmp_path / "output.txt").read_text()
                time.sleep(0.05)
            process.kill()
            process.wait()
        for run in ("run", "undisturbed"):
            process = started(command, tmp_path, run, mark)
            assert process.wait() == 0, (tmp_path / "output.txt").read_text()
    finally:
        left = list(processes(mark))
        for each in left:
            each.kill()
        psutil.wait_procs(left, timeout=10)
    once, again = results(tmp_path / "undisturbed"), results(tmp_path / "run")
    assert again == once and any(once.values())
