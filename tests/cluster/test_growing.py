"""Training on a cluster that has no worker nodes at first, and loses one on the way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

import raynas
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
