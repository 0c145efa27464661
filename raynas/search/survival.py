"""Which of many archs survive where several objectives count: whole fronts first, and of the last the widest spread."""

from __future__ import annotations

import numpy as np

from raynas.search.objectives import non_dominated

_SORTED = 2_000
"""Of more archs the first fronts are peeled off one by one: sorting all at once takes memory by the square."""


def survive(values: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """NSGA-II's survival (Deb et al. 2002): by non-dominated rank, then by crowding distance, both of pymoo.

    Args:
        values: minimised objectives [archs, objectives].
        n: how many survive at most.
        rng: breaks ties of distance.

    Returns:
        Indices [n] of the survivors, their rank [n] and their crowding distance [n].
    """
    from pymoo.core.population import Population  # slow to import, and needed by few searches
    from pymoo.core.problem import Problem
    from pymoo.operators.survival.rank_and_crowding import RankAndCrowding

    left = np.arange(len(values))
    if len(left) > _SORTED:
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
