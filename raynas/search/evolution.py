"""AutoFormer's evolutionary search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import numpy as np

from raynas.config import shown
from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import Search, at_least
from raynas.search.config import Direction
from raynas.space import INACTIVE, Codes, Space

_REDRAWS = 50  # of a pair of parents, until both have the same active genes


def check_probability(what: str, value: float) -> None:
    """Raises: UserError: the value is not a number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise UserError(f"{what} must be in [0, 1], not {shown(value)}")


def check_mutation(space: Space, mutation: float | Mapping[str, float]) -> None:
    """Refuse mutation probabilities that are out of range or name no dimension of the space.

    Raises:
        UserError: says which and why.
    """
    for key, value in mutation.items() if isinstance(mutation, Mapping) else [("mutation", mutation)]:
        check_probability(f"mutation probability {key!r}", value)
    space.mutate_codes(space.encode([space.smallest()]), np.random.default_rng(0), mutation)  # names the wrong key


def check_crossover(crossover: str) -> None:
    """Raises: UserError: the way of crossing is neither `gene` nor `block`."""
    if crossover not in ("gene", "block"):
        raise UserError(f"crossover is by 'gene' or by 'block', not {shown(crossover)}")


def released_mutation(space: Space) -> dict[str, float]:
    """AutoFormer's released probabilities: 0.2 for genes of blocks, 0.4 for depth, width and what else is global."""
    return {d.template: 0.2 if "blocks." in d.template else 0.4 for d in space.dimensions}


class Evolution(Search):
    """Evolution of the best archs so far, as AutoFormer's released script does it (S3 uses the same scheme).

    A random first population; then, in each generation, mutants and crosses of the best `parents` archs of the whole
    history, topped up with random archs to the population's size where a generator finds too few new feasible ones.
    By default 50 + 20 x 50 = 1,050 archs.

    * A mutant is a parent with each gene redrawn with a probability. A redraw may give the present value, so that a
      gene with k choices changes with (k - 1) / k of it. Blocks that a greater depth adds are random.
    * A cross takes every gene from either of two parents that have the same active genes (the same depth). The pair is
      redrawn up to 50 times; a parent may pair with itself, and the child is then a duplicate. With `any_pair` parents
      need not be alike, and a gene that only one of them has comes from that one: where each block can be dropped, two
      parents hardly ever keep the same ones.
    * Each generator gives up after `tries` draws for each arch wanted. In windows that hold less than a fiftieth of the
      space, where hardly any mutant is inside, the mutants that are missing are drawn out of the window: each as
      probable as mutation makes it.

    What differs from the released script: the children of the last generation count like all others (there they are
    evaluated, but never ranked), and a pair of parents that never matches is dropped instead of crossed badly.
    The S3 paper's values (appendix): `mutation={"depth": 0.2, "width": 0.2, "*": 0.4}, crossover="block"`.
    ViT-ResNAS's: `initial=500, population=150, parents=75, mutations=75, crossovers=75, mutation=0.3, any_pair=True,
    generations=19`; its first archs are not drawn uniformly, ours are.

    Attributes:
        tally: by generator (`mutation`, `crossover`), how many draws were `tried`, `taken`, `repeated`, `infeasible`.
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
        initial: int | None = None,
        parents: int = 10,
        mutations: int = 25,
        crossovers: int = 25,
        mutation: float | Mapping[str, float] | None = None,
        crossover: Literal["gene", "block"] = "gene",
        any_pair: bool = False,
        tries: int = 10,
        costs: Mapping[str, CostFunction] | None = None,
    ):
        """Args:
            space: what is searched.
            objectives: one objective; accuracy if not given.
            constraints: inclusive bounds by cost.
            seed: of every draw.
            evaluations: the budget in archs.
            generations: the budget in generations after the first population; 20 if no budget is given.
            population: the least archs of a generation.
            initial: archs of the first population; as many as `population` if not given.
            parents: how many of the best archs have children.
            mutations: mutants wanted in a generation.
            crossovers: crosses wanted in a generation.
            mutation: probability of redrawing a gene: one for all, or by template with `"*"` for the rest; AutoFormer's
                released ones (0.2 in blocks, 0.4 elsewhere) if not given.
            crossover: whether a cross picks by `gene` (as released) or by whole `block` (as the S3 paper says).
            any_pair: whether parents with different active genes are crossed too.
            tries: draws for each mutant or cross wanted before the generator gives up.
            costs: costs of your own by name, as functions of codes; for objectives and constraints like any other.

        Raises:
            InfeasibleError: nothing in the space meets the constraints.
            UserError: an argument is out of range, or there are several objectives.
        """
        at_least(1, evaluations=evaluations, population=population, parents=parents, tries=tries)
        if initial is None:
            initial = population
        at_least(1, initial=initial)
        at_least(0, generations=generations, mutations=mutations, crossovers=crossovers)
        check_crossover(crossover)
        if not isinstance(any_pair, bool):
            raise UserError(f"any_pair must be true or false, not {shown(any_pair)}")
        self.mutation = released_mutation(space) if mutation is None else mutation
        check_mutation(space, self.mutation)
        children = max(population, mutations + crossovers)
        archs, generations = budgets(evaluations, generations, initial, children)
        super().__init__(space, objectives, constraints, seed, archs, generations, costs=costs)
        if len(self.objectives.names) != 1:
            raise UserError("Evolution ranks by one objective: use NSGA2, or make the others constraints")
        self.population, self.initial, self.parents = population, initial, parents
        self.mutations, self.crossovers = mutations, crossovers
        self.crossover: Literal["gene", "block"] = crossover
        self.any_pair = any_pair
        self.tries = tries
        self.tally: dict[str, Counter[str]] = {"mutation": Counter(), "crossover": Counter()}

    def _generation_size(self) -> int:
        return max(self.population, self.mutations + self.crossovers) if self.history else self.initial

    def _next_generation(self) -> Codes:
        parents = self._best_parents()
        if len(parents) == 0:  # the first population; or everything failed so far
            return self.candidates.random(self.initial)
        children = np.concatenate([self._mutants(parents), self._crosses(parents)])
        return np.concatenate([children, self.candidates.random(max(0, self.population - len(children)))])

    def _best_parents(self) -> Codes:
        codes, values = self._scored()
        return codes[np.argsort(values[:, 0], kind="stable")[: self.parents]]

    def _mutants(self, parents: Codes) -> Codes:
        drawn = parents[self._rng.integers(len(parents), size=self.tries * self.mutations)]
        mutants = self.space.mutate_codes(drawn, self._rng, self.mutation)
        taken = self.candidates.take(mutants, self.mutations, self.tally["mutation"])
        missing = self.mutations - len(taken)
        if not missing or self.candidates.narrow is None:
            return taken
        parents = parents[self._rng.integers(len(parents), size=missing)]
        more = self.candidates.mutants(parents, self.mutation, self.tries, self.tally["mutation"])
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


def budgets(
    evaluations: int | None, generations: int | None, initial: int, children: int
) -> tuple[int | None, int | None]:
    """The most archs and the most generations of a generational search; 20 generations if neither is given."""
    if evaluations is None and generations is None:
        generations = 20
    spent = [evaluations, None if generations is None else initial + generations * children]
    return min(number for number in spent if number is not None), generations
