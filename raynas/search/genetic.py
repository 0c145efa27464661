"""Base of genetic searches: mutants and crosses of parents, topped up with random archs."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from raynas.errors import UserError
from raynas.search.base import Search, SearchArguments, at_least
from raynas.space import INACTIVE, Codes, Space, check_space
from raynas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

Mutation = float | Mapping[str, float]
"""Probability of redrawing a gene: one for all, or by template with `"*"` for the rest."""

Crossover = Literal["gene", "block"]
"""Unit of crossover."""

_REDRAWS = 50  # of a pair of parents until both have the same active genes


class GeneticSearch(Search):
    """Base of searches whose generations are children of the best so far.

    The first generation is random. Later ones are mutants and crosses of parents, topped up with random archs if too
    few children are new and feasible.

    * A mutant is a parent with each gene redrawn with a probability. Blocks added by a greater depth are random.
    * A cross takes every gene from either of two parents with the same active genes (the same depth). The pair is
      redrawn up to 50 times; a parent may pair with itself, and the child is then a duplicate. With `any_pair` parents
      may differ, and a gene that only one of them has comes from that one: if each block can be dropped, two parents
      hardly ever keep the same blocks.
    * Each generator gives up after `tries` draws per arch. If less than a fiftieth of the space meets the bounds, so
      that hardly any mutant does, missing mutants are drawn from the cost window, with the probabilities of mutation.

    Attributes:
        population: least size of a later generation.
        initial: size of the first generation.
        mutations, crossovers: mutants and crosses of a later generation.
        tally: by generator (`mutation`, `crossover`), the numbers of draws `tried`, `taken`, `repeated`, `infeasible`.
    """

    changes = False
    """True if a redrawn gene must take another value; see `Space.mutate_codes`."""

    population: int
    initial: int
    mutations: int
    crossovers: int
    mutation: Mutation
    crossover: Crossover
    any_pair: bool
    tries: int

    def __init__(self, space: Space, *problem: Any, **arguments: Unpack[SearchArguments]):
        """Check the options of mutation and crossover, which a subclass has set, and build the search."""
        check_space(space)
        at_least(1, population=self.population, initial=self.initial, tries=self.tries)
        at_least(0, mutations=self.mutations, crossovers=self.crossovers)
        check_crossover(self.crossover)
        check_mutation(space, self.mutation)
        self.tally: dict[str, Counter[str]] = {"mutation": Counter(), "crossover": Counter()}
        super().__init__(space, *problem, **arguments)

    @abstractmethod
    def _best_parents(self) -> Codes:
        """Return the parents; none while no arch has a score."""

    def _sizes(self) -> tuple[int, int]:
        return self.initial, max(self.population, self.mutations + self.crossovers)

    def _next_generation(self) -> Codes:
        parents = self._best_parents()
        if len(parents) == 0:  # the first generation, or all archs failed so far
            return self.candidates.random(self.initial)
        children = np.concatenate([self._mutants(parents), self._crosses(parents)])
        return np.concatenate([children, self.candidates.random(max(0, self.population - len(children)))])

    def _mutants(self, parents: Codes) -> Codes:
        drawn = parents[self._rng.integers(len(parents), size=self.tries * self.mutations)]
        mutants = self.space.mutate_codes(drawn, self._rng, self.mutation, self.changes)
        taken = self.candidates.take(mutants, self.mutations, self.tally["mutation"])
        missing = self.mutations - len(taken)
        if not missing or self.candidates.narrow is None:
            return taken
        parents = parents[self._rng.integers(len(parents), size=missing)]
        more = self.candidates.mutants(parents, self.mutation, self.changes, self.tries, self.tally["mutation"])
        return np.concatenate([taken, more])

    def _crosses(self, parents: Codes) -> Codes:
        pairs = self._rng.integers(len(parents), size=(self.tries * self.crossovers, 1 + _REDRAWS, 2))
        if self.any_pair:
            pairs = pairs[:, 0]
        else:
            active = parents != INACTIVE
            alike = (active[:, None] == active[None]).all(axis=2)[pairs[..., 0], pairs[..., 1]]
            pairs = pairs[np.arange(len(pairs)), alike.argmax(axis=1)][alike.any(axis=1)]
        crosses = self.space.crossover_codes(parents[pairs[:, 0]], parents[pairs[:, 1]], self._rng, by=self.crossover)
        return self.candidates.take(crosses, self.crossovers, self.tally["crossover"])


def check_probability(what: str, value: float) -> None:
    """Refuse what is not a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"{what} must be in [0, 1], not {shown(value)}")


def check_mutation(space: Space, mutation: Mutation) -> None:
    """Refuse mutation probabilities that are out of range or for other dimensions than the space's."""
    for key, value in mutation.items() if isinstance(mutation, Mapping) else [("mutation", mutation)]:
        check_probability(f"mutation probability {key!r}", value)
    space.mutation_rates(mutation)  # raises for a wrong key


def check_crossover(crossover: str) -> None:
    """Refuse a crossover that is neither by `gene` nor by `block`."""
    if crossover not in ("gene", "block"):
        raise UserError(f"crossover is by 'gene' or by 'block', not {shown(crossover)}")
