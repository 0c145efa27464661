"""AutoFormer's evolutionary search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from raynas.config import shown
from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import at_least
from raynas.search.breeding import Breeding, Mutation
from raynas.search.config import Direction
from raynas.space import Codes, Space


def released_mutation(space: Space) -> dict[str, float]:
    """AutoFormer's released probabilities: 0.2 for genes of blocks, 0.4 for depth, width and what else is global."""
    return {d.template: 0.2 if "blocks." in d.template else 0.4 for d in space.dimensions}


class Evolution(Breeding):
    """Evolution of the best archs so far, as AutoFormer's released script does it (S3 uses the same scheme).

    A random first population; then, in each generation, mutants and crosses of the best `parents` archs of the whole
    history, topped up with random archs to the population's size where a generator finds too few new feasible ones.
    By default 50 + 20 x 50 = 1,050 archs.

    How mutants and crosses are made: see `Breeding`. A redraw may give the present value, so that a gene with k choices
    changes with (k - 1) / k of its probability.

    What differs from the released script: the children of the last generation count like all others (there they are
    evaluated, but never ranked), and a pair of parents that never matches is dropped instead of crossed badly.
    The S3 paper's values (appendix): `mutation={"depth": 0.2, "width": 0.2, "*": 0.4}, crossover="block"`.
    ViT-ResNAS's: `initial=500, population=150, parents=75, mutations=75, crossovers=75, mutation=0.3, any_pair=True,
    generations=19`; its first archs are not drawn uniformly, ours are.
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
        mutation: Mutation | None = None,
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
        at_least(1, parents=parents)
        if not isinstance(any_pair, bool):
            raise UserError(f"any_pair must be true or false, not {shown(any_pair)}")
        if evaluations is None and generations is None:
            generations = 20
        super().__init__(
            space,
            objectives,
            constraints,
            seed,
            evaluations=evaluations,
            generations=generations,
            initial=population if initial is None else initial,
            population=population,
            mutations=mutations,
            crossovers=crossovers,
            mutation=released_mutation(space) if mutation is None else mutation,
            crossover=crossover,
            any_pair=any_pair,
            tries=tries,
            costs=costs,
        )
        if len(self.objectives.names) != 1:
            raise UserError("Evolution ranks by one objective: use NSGA2, or make the others constraints")
        self.parents = parents

    def _best_parents(self) -> Codes:
        codes, values = self._scored()
        return codes[np.argsort(values[:, 0], kind="stable")[: self.parents]]
