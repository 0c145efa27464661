"""Phases whose process is killed at random moments, without Ray; for nodes, workers and heads see tests/cluster."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

import raynas
from raynas.presets.preset import override
from tests.commands.test_killed import results
from tests.small_run import PRESET

KILLS = 4
PHASES = ("train", "search", "retrain", "evaluate")
TINY = override(PRESET, {"recipe.checkpoints": {"every_steps": 2}, "retrain.recipe": {"epochs": 2}})


def carry_out(run: Path) -> None:
    torch.set_num_threads(1)
    here = raynas.Resources(workers=0, replicas=0)
    raynas.train(TINY, run_dir=run, resources=here)
    raynas.search_run(run, resources=here)
    raynas.retrain(run, resources=here)
    raynas.evaluate(run, resources=here)


@pytest.mark.timeout(600)
def test_random_kills_change_no_result(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    late = ("timm", "sklearn.datasets")  # imported when they are needed
    context.set_forkserver_preload([__name__, *late, *(f"raynas.phases.{phase}" for phase in PHASES)])

    def attempt(run: Path, seconds: float | None = None) -> bool:
        process = context.Process(target=carry_out, args=(run,))
        process.start()
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            return False
        assert process.exitcode == 0
        return True

    idle = context.Process(target=int)
    idle.start()  # waits for the imports, which are no part of the time to be killed in
    idle.join()
    began = time.monotonic()
    assert attempt(tmp_path / "undisturbed")
    seconds, once = time.monotonic() - began, results(tmp_path / "undisturbed")
    assert any(once.values())
    draw, kills, run = random.Random(0), 0, 0
    while kills < KILLS:
        if attempt(tmp_path / f"run{run}", draw.uniform(0, seconds)):
            run += 1
        else:
            kills += 1
    assert attempt(tmp_path / f"run{run}")
    for number in range(run + 1):
        assert results(tmp_path / f"run{number}") == once
