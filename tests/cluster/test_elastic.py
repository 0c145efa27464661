"""Training whose nodes are taken away, with and without a warning, and come back: on a simulated cluster."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import raynas
from tests.cluster.simulated import autoscaling_cluster

ROOT = Path(__file__).parents[2]
EPOCHS = 150
STEPS = 17  # of an epoch
SETTINGS = {
    "recipe.epochs": EPOCHS,
    "recipe.mixup": 0,  # draws from each worker's own stream
    "recipe.checkpoints.every_epochs": 1,
    "recipe.health.probe_every": EPOCHS,
}


def train_command(run: Path, workers: str, **settings: object) -> list[str]:
    command = [sys.executable, "-m", "raynas", "train", "digits", "--run", str(run), "--workers", workers]
    return [*command, *(f"--set={name}={value}" for name, value in (SETTINGS | settings).items())]


def went_on(lines: list[str]) -> list[int]:
    """Return the steps after which training went on."""
    found = [re.search(r"going on after epoch \d+, step ([\d,]+)", line) for line in lines]
    return [int(match[1].replace(",", "")) for match in found if match]


def steps_by_process(folder: Path) -> list[list[int]]:
    """Return the numbers of workers at the steps of each process that was the first worker, in the order of starts."""
    return [[int(line) for line in file.read_text().split()] for file in sorted(folder.iterdir(), key=os.path.getctime)]


def wait_for(
    folder: Path, wanted: Callable[[list[list[int]]], bool], process: subprocess.Popen[str]
) -> list[list[int]]:
    """Wait for steps, and return them, for three minutes at most while the training runs."""
    for _ in range(1800):
        seen = steps_by_process(folder)
        if seen and seen[-1] and wanted(seen):
            return seen
        assert process.poll() is None, "the training ended"
        time.sleep(0.1)
    raise AssertionError(f"after three minutes: {seen}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_training_follows_the_nodes_that_go_and_come(tmp_path: Path) -> None:
    """One node is announced to go, another is lost, and both are replaced."""
    (steps := tmp_path / "steps").mkdir()
    sampler = {"plan.sampler": f"{{name: 'tests.cluster.counted_steps:counted', folder: '{steps}'}}"}
    with autoscaling_cluster(tmp_path / "cluster", {"CPU": 1}) as cluster:
        process = cluster.start(*train_command(tmp_path / "run", "1..2", **sampler), PYTHONPATH=str(ROOT))
        lines: list[str] = []
        assert process.stdout is not None
        reader = threading.Thread(target=lines.extend, args=(process.stdout,))
        reader.start()
        wait_for(steps, lambda seen: seen[-1].count(2) > STEPS, process)
        cluster.drain(60)
        wait_for(steps, lambda seen: len(seen) > 1 and len(seen[-1]) > STEPS, process)
        with cluster.without_new_nodes():
            os.kill(cluster.raylets()[-1], signal.SIGKILL)
            wait_for(steps, lambda seen: seen[-1][0] == 1, process)  # one node is left
        wait_for(steps, lambda seen: seen[-1].count(2) > STEPS, process)  # another one has come
        code = process.wait()
        reader.join()
        assert code == 0, "".join(lines)
    assert any("a node is being taken away: saved, and starting again without it" in line for line in lines)
    starts, counts = [0, *went_on(lines)], [len(each) for each in steps_by_process(steps)]
    repeated = [start + count - after for start, count, after in zip(starts, counts, starts[1:], strict=False)]
    assert repeated[0] == 0 and all(0 <= each <= 2 * STEPS for each in repeated), (starts, counts)
    rows = raynas.open_run(tmp_path / "run").table("training").to_pylist()
    assert [row["epoch"] for row in rows] == list(range(1, EPOCHS + 1))
    workers = [row["workers"] for row in rows]
    assert {1, 2} == set(workers)
    alone = raynas.train("digits", run_dir=tmp_path / "alone", resources=raynas.Resources(0, 0), overrides=SETTINGS)
    expected = alone.table("training").to_pylist()
    for row, other in zip(rows[:10], expected, strict=False):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-2)
    assert rows[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=0.1)
