"""AutoFormer's evolutionary search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import at_least
from raynas.search.config import Direction
from raynas.search.genetic import Breeding, Mutation
from raynas.space import Codes, Space
from raynas.text import shown


def released_mutation(space: Space) -> dict[str, float]:
    """Return AutoFormer's released probabilities: 0.2 for genes of blocks, 0.4 for depth, width and other genes."""
    return {d.template: 0.2 if "blocks." in d.template else 0.4 for d in space.dimensions}


class Evolution(Breeding):
    """Evolution of the best archs so far, as in AutoFormer's released script (S3 uses the same scheme).

    The first population is random. Each later generation has mutants and crosses of the best `parents` archs of the
    whole history, topped up with random archs to the population's size if too few children are new and feasible.
    By default 50 + 20 x 50 = 1,050 archs.

    For mutants and crosses see `Breeding`. A redraw may give the present value, so that a gene with k choices changes
    with (k - 1) / k of its probability.

    Differences to the released script: the children of the last generation are ranked like all others (there they are
    evaluated, but never ranked), and a pair of parents that never matches is dropped instead of crossed badly.
    Values of the S3 paper (appendix): `mutation={"depth": 0.2, "width": 0.2, "*": 0.4}, crossover="block"`.
    Values of ViT-ResNAS: `initial=500, population=150, parents=75, mutations=75, crossovers=75, mutation=0.3,
    any_pair=True, generations=19`; its first archs are not drawn uniformly, ours are.
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
        """Build the search.

        Args:
            space: the search space.
            objectives: one objective; by default accuracy.
            constraints: inclusive bounds by cost.
            seed: seed of all draws.
            evaluations: budget in archs.
            generations: budget in generations after the first population; 20 if no budget is given.
            population: least number of archs of a generation.
            initial: archs of the first population; by default `population`.
            parents: number of best archs used as parents.
            mutations: mutants per generation.
            crossovers: crosses per generation.
            mutation: probability of redrawing a gene: one for all, or by template with `"*"` for the rest; by default
                AutoFormer's released ones (0.2 in blocks, 0.4 elsewhere).
            crossover: unit of crossover: `gene` (as released) or whole `block` (as in the S3 paper).
            any_pair: True to also cross parents with different active genes.
            tries: draws per mutant or cross before the generator gives up.
            costs: custom costs by name, as functions of codes, for objectives and constraints.

        Raises:
            InfeasibleError: no arch of the space meets the constraints.
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
