"""NSGA-II over archs, with the sorting and crowding of pymoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import Search, at_least
from raynas.search.breeding import Mutation, budget_of, check_crossover, check_mutation, check_probability
from raynas.search.config import Direction
from raynas.search.survival import survive
from raynas.space import Codes, Space


class NSGA2(Search):
    """NSGA-II (Deb et al. 2002): a population evolves towards the front of several objectives.

    Survival by non-dominated rank and crowding distance is pymoo's; parents win binary tournaments by the same two.
    Sampling, crossover and mutation are the space's own. Only feasible archs are handed out, and none twice, so that
    no evaluation is spent on what cannot be used. By default 50 + 20 x 50 = 1,050 archs.
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
        """Args:
            space: what is searched.
            objectives: one or more; accuracy if not given.
            constraints: inclusive bounds by cost.
            seed: of every draw.
            evaluations: the budget in archs.
            generations: the budget in generations after the first population; 20 if no budget is given.
            population: archs that survive, and archs of each generation.
            parents: draw parents from the best so many of the population, by rank and then distance, as ViTAS says
                (20 of 50; neither its release nor the algorithm as published does); from all of it if not given.
            crossover_probability: how often a child has two parents.
            mutation: probability of redrawing a gene of a child: one for all, or by template with `"*"` for the rest;
                one gene in the longest arch on average if not given.
            crossover: whether a cross picks by `gene` or by whole `block`.
            tries: draws for each child wanted before random archs fill the generation.
            costs: costs of your own by name, as functions of codes; for objectives and constraints like any other.

        Raises:
            InfeasibleError: nothing in the space meets the constraints.
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
        self._merged = 0  # archs of the history that have competed for a place in the population

    def _generation_size(self) -> int:
        return self.population

    def _next_generation(self) -> Codes:
        if all(row.objectives is None for row in self.history):  # the first population; or everything failed so far
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
        """Merge what was told since the last generation into the population and cut it to its size.

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
        """Indices [n] of the winners of n binary tournaments: the lower rank, then the wider distance."""
        one, other = self._rng.integers(len(rank), size=(2, n))
        wins = (rank[one] < rank[other]) | ((rank[one] == rank[other]) & (crowding[one] >= crowding[other]))
        return np.where(wins, one, other)
