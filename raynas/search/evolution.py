"""AutoFormer's evolutionary search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.errors import UserError
from raynas.search.base import SearchArguments, at_least
from raynas.search.genetic import Crossover, GeneticSearch, Mutation
from raynas.search.history import FINALISTS, Cut
from raynas.space import Codes, Space, check_space
from raynas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack


def released_mutation(space: Space) -> dict[str, float]:
    """Return AutoFormer's released probabilities: 0.2 for genes of blocks, 0.4 for depth, width and other genes."""
    return {d.template: 0.2 if "blocks." in d.template else 0.4 for d in space.dimensions}


class Evolution(GeneticSearch):
    """Evolution of the best archs so far, as in AutoFormer's released script (S3 uses the same scheme).

    The first population is random. Each later generation has mutants and crosses of the best `parents` archs of the
    whole history, topped up with random archs to the population's size if too few children are new and feasible.
    By default 50 + 20 x 50 = 1,050 archs.

    For mutants and crosses see `GeneticSearch`. A redraw may give the present value, so that a gene with k choices
    changes with (k - 1) / k of its probability.

    Differences to the released script: the children of the last generation are ranked like all others (there they are
    evaluated, but never ranked), and a pair of parents that never matches is dropped instead of crossed badly.
    Values of the S3 paper (appendix): `mutation={"depth": 0.2, "width": 0.2, "*": 0.4}, crossover="block"`.
    Values of ViT-ResNAS: `initial=500, population=150, parents=75, mutations=75, crossovers=75, mutation=0.3,
    any_pair=True, generations=19`; its first archs are not drawn uniformly, ours are.
    """

    default_generations = 20

    def __init__(
        self,
        space: Space,
        *problem: Any,
        population: int = 50,
        initial: int | None = None,
        parents: int = 10,
        mutations: int = 25,
        crossovers: int = 25,
        mutation: Mutation | None = None,
        crossover: Crossover = "gene",
        any_pair: bool = False,
        tries: int = 10,
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
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

        Raises:
            UserError: an option is out of range, or there are several objectives.
        """
        check_space(space)
        at_least(1, parents=parents)
        if not isinstance(any_pair, bool):
            raise UserError(f"any_pair must be true or false, not {shown(any_pair)}")
        self.population, self.initial = population, population if initial is None else initial
        self.parents, self.mutations, self.crossovers = parents, mutations, crossovers
        self.mutation = released_mutation(space) if mutation is None else mutation
        self.crossover, self.any_pair, self.tries = crossover, any_pair, tries
        super().__init__(space, *problem, **arguments)
        if len(self.objectives.names) != 1:
            raise UserError("Evolution ranks by one objective: use NSGA2, or make the others constraints")

    def cut(self) -> Cut:
        """Return the cut: a place among the parents."""
        places = max(self.parents, FINALISTS if self.constraints.functions else 1)
        return Cut(places, [row.arch for row in self.ranking(places)])

    def _best_parents(self) -> Codes:
        codes, values = self._scored()
        return codes[np.argsort(values[:, 0], kind="stable")[: self.parents]]
