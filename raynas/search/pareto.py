"""NASViT's and AlphaNet's evolution towards a Pareto front, for example of accuracy and MACs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.errors import UserError
from raynas.search.base import SearchArguments, at_least
from raynas.search.genetic import Crossover, GeneticSearch, Mutation
from raynas.search.history import Cut
from raynas.search.survival import survive
from raynas.space import Codes, Space
from raynas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ParetoEvolution(GeneticSearch):
    """Evolution towards the front of several objectives, with the numbers of NASViT's search.

    There are 1,024 random archs; then, in each of 40 rounds, 128 mutants and 128 crosses of the parents: 11,264 archs.
    For their making see `GeneticSearch`; here a mutated gene changes if it can, and any two parents are crossed.

    The parents are the best 128 archs so far (by front, and within the last front by crowding distance; the paper does
    not specify it). `buckets` selects parents as in AlphaNet instead: costs are rounded to steps, and the best arch of
    each step is a parent, even if other archs dominate it.
    """

    changes = True
    default_generations = 40

    def __init__(
        self,
        space: Space,
        *problem: Any,
        initial: int = 1024,
        parents: int | None = None,
        mutations: int = 128,
        crossovers: int = 128,
        mutation: Mutation = 0.2,
        crossover: Crossover = "gene",
        buckets: Mapping[str, float] | None = None,
        tries: int = 10,
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
            initial: archs of the first generation.
            parents: number of best archs used as parents; by default 128, or with `buckets` the best of each.
            mutations: mutants per round.
            crossovers: crosses per round.
            mutation: probability of changing a gene: one for all, or by template with `"*"` for the rest.
            crossover: unit of crossover: `gene` or whole `block`.
            buckets: the step of a cost that is an objective, such as `{"macs": 10e6}` (AlphaNet): the best arch of each
                step by the one other objective is a parent. None for parents by front.
            tries: draws per mutant or cross before random archs fill the round.

        Raises:
            UserError: an option is out of range, or the buckets do not leave one objective.
        """
        if parents is not None:
            at_least(1, parents=parents)
        at_least(0, mutations=mutations, crossovers=crossovers)
        self.initial, self.population = initial, max(1, mutations + crossovers)
        self.mutations, self.crossovers = mutations, crossovers
        self.mutation, self.crossover, self.any_pair, self.tries = mutation, crossover, True, tries
        super().__init__(space, *problem, **arguments)
        self.parents = 128 if parents is None and buckets is None else parents
        self.buckets = _steps(buckets, self.objectives.names)
        self._best: tuple[Codes, np.ndarray] = self._scored()
        self._merged = 0  # batches of archs that were already considered as parents

    def cut(self) -> Cut | None:
        """Return the cut: a place among the parents; None with `buckets`, which need every score."""
        if self.buckets is not None or self.parents is None:
            return None
        return Cut(self.parents, self.space.decode(self._with_new(self._best, self._merged)[0]))

    def _best_parents(self) -> Codes:
        codes, values = self._with_new(self._best, self._merged)
        self._merged = len(self._batches)
        kept = self.select(values, self.parents)
        self._best = codes[kept], values[kept]
        return codes[kept]

    def select(self, values: np.ndarray, n: int | None) -> np.ndarray:
        """Return the indices of the best n rows of minimised objectives [archs, objectives], ascending.

        With `buckets` the best of each, then the second best of each, and so on; for n None, only the best of each.
        """
        left = np.arange(len(values))
        if self.buckets is None:
            return left if n is None or n >= len(left) else np.sort(survive(values, n, self._rng)[0])
        chosen = left[:0]
        while len(left) and len(chosen) < (1 if n is None else n):
            best = left[self._best_of_buckets(values[left])]
            left = np.setdiff1d(left, best)
            if n is not None and len(chosen) + len(best) > n:
                best = best[survive(values[best], n - len(chosen), self._rng)[0]]
            chosen = np.append(chosen, best)
        return np.sort(chosen)

    def _best_of_buckets(self, values: np.ndarray) -> np.ndarray:
        """Return the rows [n] of the best arch of each bucket, the first among equals."""
        assert self.buckets is not None
        names = self.objectives.names
        columns = [names.index(name) for name in self.buckets]
        (by,) = (index for index in range(len(names)) if index not in columns)
        order = np.argsort(values[:, by], kind="stable")
        keys = np.rint(values[order][:, columns] / list(self.buckets.values()))
        return order[np.unique(keys, axis=0, return_index=True)[1]]


def _steps(buckets: Mapping[str, float] | None, objectives: list[str]) -> dict[str, float] | None:
    if buckets is None:
        return None
    if not isinstance(buckets, Mapping) or not buckets:
        raise UserError(f"buckets are steps of costs, such as {{'macs': 10e6}}, not {shown(buckets)}")
    for name, step in buckets.items():
        if name not in objectives:
            raise UserError(f"buckets: {shown(name)} is no objective; the objectives are {', '.join(objectives)}")
        if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < float("inf"):
            raise UserError(f"buckets: the step of {name} must be a number above 0, not {shown(step)}")
    if len(buckets) != len(objectives) - 1:
        raise UserError("buckets: leave one objective, by which the best of each bucket is chosen")
    return dict(buckets)
