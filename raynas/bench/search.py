"""Comparison of the search algorithms on an exact benchmark: a space of 4,000 archs, all of which have been scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from raynas.costs import cost
from raynas.errors import InfeasibleError, UserError
from raynas.progress.reporter import Progress, silent
from raynas.search import SearchConfig, build_search
from raynas.space import Space, load_space
from raynas.space.load import SPACES

SPACE = "digits/vitas_block"
TABLE = SPACES / "digits" / "vitas_block_scores.parquet"
SEARCHES: dict[str, dict[str, Any]] = {
    "random": {"name": "random"},
    "evolution": {"name": "evolution"},
    "nsga2": {"name": "nsga2"},
    "nsga2, 20 parents": {"name": "nsga2", "options": {"parents": 20}},
    "pareto": {"name": "pareto", "options": {"initial": 50, "parents": 10, "mutations": 25, "crossovers": 25}},
    "predictor": {
        "name": "predictor",
        "options": {"samples": 100, "held_out": 25, "verify": 50, "evolution": {"generations": 10, "initial": 256}},
    },
    "optuna: tpe": {"name": "optuna"},
    "optuna: cmaes": {"name": "optuna", "options": {"sampler": "cmaes"}},
    "optuna: nsgaii": {"name": "optuna", "options": {"sampler": "nsgaii"}},
}
"""The searches by the name in the table; `pareto` and `predictor` with numbers for hundreds of archs, not thousands."""


def known_scores(space: Space) -> list[dict[str, float]]:
    """Return the accuracy of every arch by its id, for each of the five supernets that were scored in full."""
    table = pq.read_table(TABLE, columns=["seed", "arch", "accuracy"]).to_pydict()
    scores: list[dict[str, float]] = [{} for _ in range(1 + max(table["seed"]))]
    for seed, arch, accuracy in zip(table["seed"], table["arch"], table["accuracy"], strict=True):
        scores[seed][arch] = accuracy
    assert all(len(each) == space.cardinality() for each in scores)
    return scores


def bench_search(
    macs: float | None = 1e6,
    evaluations: int = 400,
    seeds: int = 20,
    searches: Sequence[str] = tuple(SEARCHES),
    progress: Progress = silent,
) -> dict[str, np.ndarray]:
    """Run searches whose scores are looked up.

    Args:
        macs: budget in multiply-accumulates; None for no limit.
        seeds: number of searches of each algorithm; seed i searches supernet i modulo five, for every algorithm.
        searches: names of `SEARCHES`.

    Returns:
        By name the regret: best accuracy in the space minus the best one found so far, [seeds, evaluations].

    Raises:
        InfeasibleError: no arch meets the budget.
        UserError: the budget is not a finite number.
    """
    if macs is not None and not math.isfinite(macs):
        raise UserError(f"macs must be a finite number, not {macs}")
    space = load_space(SPACE)
    scores = known_scores(space)
    archs = list(space.enumerate())
    fits = cost(space, archs)["macs"] <= (np.inf if macs is None else macs)
    if not fits.any():
        raise InfeasibleError(f"no arch of {SPACE} has at most {macs:g} MACs")
    best = [max(each[arch.id] for arch, fit in zip(archs, fits, strict=True) if fit) for each in scores]
    found = {}
    for name in searches:
        progress(f"{name}, {seeds} seeds")
        curves = []
        for seed in range(seeds):
            known = scores[seed % len(scores)]
            accuracies = _searched(space, SEARCHES[name], macs, evaluations, seed, known)
            curves.append(best[seed % len(scores)] - np.maximum.accumulate(accuracies))
        length = min(len(curve) for curve in curves)
        found[name] = np.stack([curve[:length] for curve in curves])
    return found


def _searched(
    space: Space, config: dict[str, Any], macs: float | None, evaluations: int, seed: int, known: dict[str, float]
) -> np.ndarray:
    """Return the accuracies in the order in which a search asked for the archs."""
    settings = {**config, "evaluations": evaluations, "seed": seed, "constraints": {"macs": (None, macs)}}
    search = build_search(SearchConfig.model_validate(settings), space)
    told: list[float] = []
    while archs := search.ask(50):
        values = [known[arch.id] for arch in archs]
        search.tell(archs, values)
        told += values
    return np.array(told)
