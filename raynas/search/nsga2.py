"""NSGA-II over archs, with pymoo's sorting and crowding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import Search, at_least
from raynas.search.config import Direction
from raynas.search.genetic import Mutation, budget_of, check_crossover, check_mutation, check_probability
from raynas.search.survival import survive
from raynas.space import Codes, Space


class NSGA2(Search):
    """NSGA-II (Deb et al. 2002): evolution towards the front of several objectives.

    Survival is by pymoo's non-dominated rank and crowding distance, and parents win binary tournaments by the same.
    Sampling, crossover and mutation are those of the space. Only feasible archs are returned, without repeats. By
    default 50 + 20 x 50 = 1,050 archs.
    """

    def __init__(
        self,
        space: Space,
        objectives: Mapping[str, Direction] | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        seed: int = 0,
        *,
        evaluations: int | None = None,
        generations: int | None = None,
        population: int = 50,
        parents: int | None = None,
        crossover_probability: float = 0.9,
        mutation: Mutation | None = None,
        crossover: Literal["gene", "block"] = "gene",
        tries: int = 10,
        costs: Mapping[str, CostFunction] | None = None,
    ):
        """Build the search.

        Args:
            space: the search space.
            objectives: one or more; by default accuracy.
            constraints: inclusive bounds by cost.
            seed: seed of all draws.
            evaluations: budget in archs.
            generations: budget in generations after the first population; 20 if no budget is given.
            population: number of surviving archs, and of archs of each generation.
            parents: number of best archs of the population, by rank and then distance, to draw parents from, as in the
                ViTAS paper (20 of 50; not in its release nor in the original algorithm); by default all.
            crossover_probability: probability that a child has two parents.
            mutation: probability of redrawing a gene of a child: one for all, or by template with `"*"` for the rest;
                by default one gene of the longest arch on average.
            crossover: unit of crossover: `gene` or whole `block`.
            tries: draws per child before random archs fill the generation.
            costs: custom costs by name, as functions of codes, for objectives and constraints.

        Raises:
            InfeasibleError: no arch of the space meets the constraints.
            UserError: an argument is out of range.
        """
        at_least(1, evaluations=evaluations, population=population, tries=tries)
        if parents is not None:
            at_least(1, parents=parents)
            if parents > population:
                raise UserError(f"parents are of the population: give at most {population}, not {parents}")
        at_least(0, generations=generations)
        check_crossover(crossover)
        check_probability("crossover_probability", crossover_probability)
        self.mutation = 1 / len(space.dimensions) if mutation is None else mutation
        check_mutation(space, self.mutation)
        if evaluations is None and generations is None:
            generations = 20
        archs = budget_of(evaluations, generations, population, population)
        super().__init__(space, objectives, constraints, seed, archs, generations, costs=costs)
        self.population = population
        self.parents = population if parents is None else parents
        self.crossover_probability = crossover_probability
        self.crossover: Literal["gene", "block"] = crossover
        self.tries = tries
        self._population: tuple[Codes, np.ndarray] = self._scored()
        self._merged = 0  # archs of the history that were already merged into the population

    def _generation_size(self) -> int:
        return self.population

    def _next_generation(self) -> Codes:
        if all(row.objectives is None for row in self.history):  # the first population, or all archs failed so far
            return self.candidates.random(self.population)
        parents, rank, crowding = self._survive()
        best = np.lexsort((-crowding, rank))[: self.parents]
        parents, rank, crowding = parents[best], rank[best], crowding[best]
        n = self.tries * self.population
        first, second = (parents[self._tournaments(rank, crowding, n)] for _ in range(2))
        crossed = self.space.crossover_codes(first, second, self._rng, by=self.crossover)
        children = np.where(self._rng.random((n, 1)) < self.crossover_probability, crossed, first)
        children = self.space.mutate_codes(children, self._rng, self.mutation)
        taken = self.candidates.take(children, self.population)
        return np.concatenate([taken, self.candidates.random(self.population - len(taken))])

    def _survive(self) -> tuple[Codes, np.ndarray, np.ndarray]:
        """Merge new scores into the population and reduce it to its size.

        Returns:
            The survivors' codes, with their rank [n] and crowding distance [n].
        """
        told = self._scored()
        codes, values = (
            np.concatenate([old, new[self._merged :]]) for old, new in zip(self._population, told, strict=True)
        )
        self._merged = len(told[0])
        kept, rank, crowding = survive(values, self.population, self._rng)
        self._population = codes[kept], values[kept]
        return codes[kept], rank, crowding

    def _tournaments(self, rank: np.ndarray, crowding: np.ndarray, n: int) -> np.ndarray:
        """Return the winners' indices [n] of n binary tournaments: by lower rank, then by greater distance."""
        one, other = self._rng.integers(len(rank), size=(2, n))
        wins = (rank[one] < rank[other]) | ((rank[one] == rank[other]) & (crowding[one] >= crowding[other]))
        return np.where(wins, one, other)
