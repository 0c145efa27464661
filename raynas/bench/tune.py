"""Comparison of the samplers of tuning on functions whose optima are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raynas.progress.reporter import Progress, silent
from raynas.search.optuna_samplers import build_sampler, study_in_memory

SAMPLERS: dict[str, dict[str, Any]] = {
    "random": {},
    "qmc": {},
    "tpe": {},
    "gp": {},
    "cmaes": {},
    "nsgaii": {"population_size": 10},
}
"""The samplers with their options: a population that is renewed a few times in as many trials."""

STEPS = 27
_ASYMPTOTE = 0.05


@dataclass(frozen=True)
class Problem:
    """A function to minimise.

    Attributes:
        text: a line about it.
        bounds: lowest and highest value of each parameter.
        function: from values by name, and a generator for noise, to the measured values of a trial's steps; the last
            one is its result.
        regret: from values by name to the distance from the optimum, without noise.
        trials: how many (whole) trials a study may spend.
        steps: measured values of a whole trial.
        prunes: True if trials that are behind are stopped early, by successive halving (ASHA).
    """

    text: str
    bounds: Mapping[str, tuple[float, float]]
    function: Callable[[Mapping[str, float], np.random.Generator], Sequence[float]]
    regret: Callable[[Mapping[str, float]], float]
    trials: int
    steps: int = 1
    prunes: bool = False


def branin(values: Mapping[str, float]) -> float:
    """Return Branin's function, whose three minima are 0.397887."""
    x, y = values["x"], values["y"]
    bowl = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return bowl + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


_WEIGHTS = np.array([1.0, 1.2, 3.0, 3.2])
_WIDTHS = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
_PEAKS = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann(values: Mapping[str, float]) -> float:
    """Return Hartmann's function of six parameters in [0, 1], whose minimum is -3.32237."""
    place = np.array([values[f"x{index}"] for index in range(6)])
    return -float(_WEIGHTS @ np.exp(-(_WIDTHS * (place - _PEAKS) ** 2).sum(axis=1)))


def final_error(values: Mapping[str, float]) -> float:
    """Return the error at which a learning curve ends; the lowest is 0.05."""
    return (
        _ASYMPTOTE
        + (values["rate"] - 0.7) ** 2
        + 0.5 * (values["decay"] - 0.3) ** 2
        + 0.2 * (values["noise"] - 0.5) ** 2
    )


def learning_curve(values: Mapping[str, float], rng: np.random.Generator) -> list[float]:
    """Return the measured errors [steps] of a training: low rates are slow, and each measurement errs by 0.005."""
    slow = 2 + 8 * (1 - values["rate"])
    clean = final_error(values) + 0.5 * np.exp(-np.arange(1, STEPS + 1) / slow)
    measured: list[float] = (clean + rng.normal(0, 0.005, STEPS)).tolist()
    return measured


_UNIT = (0.0, 1.0)
_CURVE = {"rate": _UNIT, "decay": _UNIT, "noise": _UNIT}
PROBLEMS: dict[str, Problem] = {
    "branin": Problem(
        "two parameters, three minima",
        {"x": (-5.0, 10.0), "y": (0.0, 15.0)},
        lambda values, rng: [branin(values)],
        lambda values: branin(values) - 0.397887,
        60,
    ),
    "hartmann6": Problem(
        "six parameters, six minima",
        {f"x{index}": _UNIT for index in range(6)},
        lambda values, rng: [hartmann(values)],
        lambda values: hartmann(values) + 3.32237,
        80,
    ),
    "curves": Problem(
        f"noisy learning curves of {STEPS} steps",
        _CURVE,
        learning_curve,
        lambda values: final_error(values) - _ASYMPTOTE,
        40,
        STEPS,
    ),
    "curves, asha": Problem(
        "the same number of steps, spent by successive halving",
        _CURVE,
        learning_curve,
        lambda values: final_error(values) - _ASYMPTOTE,
        40,
        STEPS,
        prunes=True,
    ),
}


def bench_tune(
    samplers: Sequence[str] = tuple(SAMPLERS),
    problems: Sequence[str] = tuple(PROBLEMS),
    seeds: int = 20,
    progress: Progress = silent,
) -> dict[tuple[str, str], np.ndarray]:
    """Minimise functions by each sampler, trial after trial.

    Args:
        samplers: names of `SAMPLERS`.
        problems: names of `PROBLEMS`.
        seeds: number of studies of each sampler and problem.

    Returns:
        By problem and sampler the distance of the trial that is found best (by what was measured) from the optimum,
        [seeds].
    """
    found = {}
    for problem in problems:
        for sampler in samplers:
            progress(f"{problem}, {sampler}, {seeds} seeds")
            regret = [tuned_regret(PROBLEMS[problem], sampler, SAMPLERS[sampler], seed) for seed in range(seeds)]
            found[problem, sampler] = np.array(regret)
    return found


def tuned_regret(problem: Problem, sampler: str, options: Mapping[str, Any], seed: int) -> float:
    """Return the regret of one study, which spends as many steps as `problem.trials` whole trials have."""
    from optuna.distributions import BaseDistribution, FloatDistribution
    from optuna.pruners import NopPruner, SuccessiveHalvingPruner
    from optuna.trial import TrialState

    study = study_in_memory()
    study.pruner = SuccessiveHalvingPruner(reduction_factor=3) if problem.prunes else NopPruner()
    distributions: dict[str, BaseDistribution] = {
        name: FloatDistribution(*bounds) for name, bounds in problem.bounds.items()
    }
    noise = np.random.default_rng(seed)
    lowest, best, left, number = math.inf, {}, problem.trials * problem.steps, 0
    while left > 0:
        study.sampler = build_sampler(sampler, options, seed, number)
        trial = study.ask(distributions)
        for step, value in enumerate(problem.function(trial.params, noise), start=1):
            trial.report(value, step)
            left -= 1
            if step == problem.steps:
                study.tell(trial, value)
                if value < lowest:
                    lowest, best = value, trial.params
            elif trial.should_prune():
                study.tell(trial, state=TrialState.PRUNED)
                break
        number += 1
    return problem.regret(best)
