"""NSGA-II over archs, with pymoo's sorting and crowding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.errors import UserError
from raynas.search.base import Search, SearchArguments, at_least
from raynas.search.genetic import Crossover, Mutation, check_crossover, check_mutation, check_probability
from raynas.search.history import Cut
from raynas.search.survival import survive
from raynas.space import Codes, Space, check_space

if TYPE_CHECKING:
    from typing_extensions import Unpack


class NSGA2(Search):
    """NSGA-II (Deb et al. 2002): evolution towards the front of several objectives.

    Survival is by pymoo's non-dominated rank and crowding distance, and parents win binary tournaments by the same.
    Sampling, crossover and mutation are those of the space. Only feasible archs are returned, without repeats. By
    default 50 + 20 x 50 = 1,050 archs.
    """

    default_generations = 20

    def __init__(
        self,
        space: Space,
        *problem: Any,
        population: int = 50,
        parents: int | None = None,
        crossover_probability: float = 0.9,
        mutation: Mutation | None = None,
        crossover: Crossover = "gene",
        tries: int = 10,
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
            population: number of surviving archs, and of archs of each generation.
            parents: number of best archs of the population, by rank and then distance, to draw parents from, as in the
                ViTAS paper (20 of 50; not in its release nor in the original algorithm); by default all.
            crossover_probability: probability that a child has two parents.
            mutation: probability of redrawing a gene of a child: one for all, or by template with `"*"` for the rest;
                by default one gene of the longest arch on average.
            crossover: unit of crossover: `gene` or whole `block`.
            tries: draws per child before random archs fill the generation.

        Raises:
            UserError: an option is out of range.
        """
        check_space(space)
        at_least(1, population=population, tries=tries)
        if parents is not None:
            at_least(1, parents=parents)
            if parents > population:
                raise UserError(f"parents are of the population: give at most {population}, not {parents}")
        check_crossover(crossover)
        check_probability("crossover_probability", crossover_probability)
        self.mutation = 1 / len(space.dimensions) if mutation is None else mutation
        check_mutation(space, self.mutation)
        self.population, self.parents = population, population if parents is None else parents
        self.crossover_probability, self.crossover, self.tries = crossover_probability, crossover, tries
        super().__init__(space, *problem, **arguments)
        self._population: tuple[Codes, np.ndarray] = self._scored()
        self._merged = 0  # batches of archs that were already merged into the population

    def _sizes(self) -> tuple[int, int]:
        return self.population, self.population

    def cut(self) -> Cut:
        """Return the cut: a place in the population."""
        return Cut(self.population, self.space.decode(self._with_new(self._population, self._merged)[0]))

    def _next_generation(self) -> Codes:
        if not any(len(codes) for codes, _ in self._batches):  # the first population, or all archs failed so far
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
        codes, values = self._with_new(self._population, self._merged)
        self._merged = len(self._batches)
        kept, rank, crowding = survive(values, self.population, self._rng)
        self._population = codes[kept], values[kept]
        return codes[kept], rank, crowding

    def _tournaments(self, rank: np.ndarray, crowding: np.ndarray, n: int) -> np.ndarray:
        """Return the winners' indices [n] of n binary tournaments: by lower rank, then by greater distance."""
        one, other = self._rng.integers(len(rank), size=(2, n))
        wins = (rank[one] < rank[other]) | ((rank[one] == rank[other]) & (crowding[one] >= crowding[other]))
        return np.where(wins, one, other)
