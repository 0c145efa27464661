"""Survival of archs under several objectives: whole fronts first, then the widest spread of the last front."""

from __future__ import annotations

import numpy as np

from raynas.search.objectives import non_dominated

_SORTED = 2_000
"""Number of archs above which fronts are found one by one, since sorting all at once needs quadratic memory."""


def survive(values: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Select survivors as in NSGA-II (Deb et al. 2002): by pymoo's non-dominated rank, then crowding distance.

    Args:
        values: minimised objectives [archs, objectives].
        n: largest number of survivors.
        rng: breaks ties of distance.

    Returns:
        Indices [n] of the survivors, their rank [n] and their crowding distance [n].
    """
    from pymoo.core.population import Population  # slow import, for few searches
    from pymoo.core.problem import Problem
    from pymoo.operators.survival.rank_and_crowding import RankAndCrowding

    left = np.arange(len(values))
    if len(left) > _SORTED and values.shape[1] == 1:
        left = np.flatnonzero(values[:, 0] <= np.sort(values[:, 0])[min(n, len(values)) - 1])
    elif len(left) > _SORTED:
        fronts: list[np.ndarray] = []
        while len(left) and sum(map(len, fronts)) < n:
            best = non_dominated(values[left])
            fronts.append(left[best])
            left = left[~best]
        left = np.sort(np.concatenate(fronts))
    everyone = Population.new("X", left[:, None], "F", values[left])
    problem = Problem(n_var=1, n_obj=values.shape[1])
    kept = RankAndCrowding().do(problem, everyone, n_survive=n, random_state=rng)
    return kept.get("X")[:, 0].astype(int), kept.get("rank"), kept.get("crowding")
