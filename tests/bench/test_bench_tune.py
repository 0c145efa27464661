"""The benchmark of the samplers of tuning; its 20 seeds are for `raynas bench tune`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from raynas.bench.tune import (
    PROBLEMS,
    SAMPLERS,
    bench_tune,
    branin,
    final_error,
    hartmann,
    learning_curve,
    tuned_regret,
)
from raynas.commands.bench import tune
from raynas.commands.main import main


def test_the_optima_are_where_the_literature_has_them() -> None:
    for x, y in ((-np.pi, 12.275), (np.pi, 2.275), (9.42478, 2.475)):
        assert branin({"x": x, "y": y}) == pytest.approx(0.397887, abs=1e-5)
    place = (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)
    assert hartmann({f"x{index}": value for index, value in enumerate(place)}) == pytest.approx(-3.32237, abs=1e-5)
    grid = [{"rate": rate / 10, "decay": decay / 10, "noise": 0.5} for rate in range(11) for decay in range(11)]
    assert min(grid, key=final_error) == {"rate": 0.7, "decay": 0.3, "noise": 0.5}
    curve = learning_curve(grid[0], np.random.default_rng(0))
    assert curve[-1] == pytest.approx(final_error(grid[0]), abs=0.1) and curve[0] > curve[-1]


@pytest.mark.parametrize(
    ("sampler", "problem", "trials", "margin"),
    [("tpe", "hartmann6", 80, 0.3), ("cmaes", "hartmann6", 80, 0.2), ("gp", "branin", 18, 0.3)],
)
def test_samplers_that_learn_beat_random(sampler: str, problem: str, trials: int, margin: float) -> None:
    import torch

    torch.set_num_threads(1)
    this = replace(PROBLEMS[problem], trials=trials)
    seeds = range(2 if sampler == "gp" else 3)
    regrets = [[tuned_regret(this, name, SAMPLERS[name], seed) for seed in seeds] for name in ("random", sampler)]
    assert np.mean(regrets[0]) - np.mean(regrets[1]) > margin


def test_pruning_tries_more_in_as_many_steps() -> None:
    whole, pruned = (
        [tuned_regret(replace(PROBLEMS[name], trials=12), "random", {}, seed) for seed in range(6)]
        for name in ("curves", "curves, asha")
    )
    assert np.mean(pruned) < 0.8 * np.mean(whole)


def test_the_command_prints_a_row_for_each_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(SAMPLERS) == tune.SAMPLERS
    assert main(["bench", "tune", "--seeds", "2", "--samplers", "random"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].startswith("random ") and lines[-1].count("±") == len(PROBLEMS)


def test_a_study_repeats_itself() -> None:
    first, again = (bench_tune(["tpe"], ["branin"], seeds=1)["branin", "tpe"] for _ in range(2))
    assert first == again
