"""Drivers killed in the middle of a study, with the Ray that they started: the same command ends in the same table."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import optuna
import psutil
import pytest

from raynas.runs.run import Run
from tests.cluster.test_local_ray import environment, processes
from tests.outer.tuning_parts import table

SCRIPT = """
import sys, time
import raynas

def train(config, trial):
    weight = 5.0
    for epoch in range(3):
        weight -= config["lr"] * 2 * weight
        trial.report(weight * weight)
        time.sleep(0.2)
    return weight * weight

raynas.tune(
    train, sys.argv[1], {"lr": {"low": 1e-3, "high": 0.9, "log": True}, "on": {"choices": [True, False]}},
    objectives={"loss": "min"}, sampler={"name": "tpe", "n_startup_trials": 3},
    pruner={"name": "asha", "min_resource": 1, "reduction_factor": 2}, trials=8, at_a_time=1, progress=print,
)
"""

KILLED_AT = ("study.db", "tables/trials/*.parquet", "trials/0001/*", "tables/trial_steps/*.parquet", "trials/0004")
"""Files whose appearance, or whose number's growth, is the moment of each kill."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_driver_killed_again_and_again_ends_in_the_same_table(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    mark = f"RAYNAS_TUNED_{time.monotonic_ns()}"

    def started(run: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / run)]
        with (tmp_path / "output.txt").open("w") as output:
            return subprocess.Popen(command, env=environment(**{mark: "1"}), stdout=output, stderr=output)

    read = 0
    try:
        for moment in KILLED_AT:
            before = len(list((tmp_path / "killed").glob(moment)))
            process = started("killed")
            while len(list((tmp_path / "killed").glob(moment))) <= before and process.poll() is None:
                if (tmp_path / "killed/study.db").exists():  # as another process sees it
                    read = len(
                        optuna.load_study(study_name="killed", storage=f"sqlite:///{tmp_path}/killed/study.db").trials
                    )
                time.sleep(0.02)
            process.kill()
            process.wait()
        for run in ("killed", "undisturbed"):
            process = started(run)
            assert process.wait() == 0, (tmp_path / "output.txt").read_text()
    finally:
        left = list(processes(mark))
        for each in left:
            each.kill()
        psutil.wait_procs(left, timeout=10)
    killed, undisturbed = Run(tmp_path / "killed"), Run(tmp_path / "undisturbed")
    assert table(killed) == table(undisturbed) and len(table(killed)) == 8 and read > 0
    attempts = set(killed.store.read("trials")["attempt"].to_pylist())
    assert len(attempts) > 1
    rows = killed.store.read("trials", ["number", "state"]).to_pylist()
    ended = [row["number"] for row in rows if row["state"] != "running"]
    assert sorted(ended) == list(range(8))  # each once
