"""Random search, the baseline of all other searches at equal budget."""

from __future__ import annotations

from collections.abc import Mapping

from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.base import Search, at_least
from raynas.search.config import Direction
from raynas.space import Codes, Space
from raynas.space.space import Uniform
from raynas.text import shown

_CHUNK = 64


class RandomSearch(Search):
    """Random feasible archs without repeats.

    Archs do not depend on scores, so it never waits for them. A smaller budget gives the first archs of a larger one.
    """

    learns = False

    def __init__(
        self,
        space: Space,
        objectives: Mapping[str, Direction] | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        seed: int = 0,
        *,
        evaluations: int = 1050,
        uniform_over: Uniform = "dimensions",
        costs: Mapping[str, CostFunction] | None = None,
    ):
        """Build the search.

        Args:
            space: the search space.
            objectives: objectives of `best` and `front`; by default accuracy.
            constraints: inclusive bounds by cost.
            seed: seed of all draws.
            evaluations: budget in archs; the default equals `Evolution`'s.
            uniform_over: `dimensions` or `archs`; see `Space.sample_codes`.
            costs: custom costs by name, as functions of codes, for objectives and constraints.

        Raises:
            InfeasibleError: no arch of the space meets the constraints.
            UserError: an argument is out of range.
        """
        at_least(1, evaluations=evaluations)
        if uniform_over not in ("dimensions", "archs"):
            raise UserError(f"uniform_over is 'dimensions' or 'archs', not {shown(uniform_over)}")
        super().__init__(space, objectives, constraints, seed, evaluations, uniform_over=uniform_over, costs=costs)

    def _next_generation(self) -> Codes:
        return self.candidates.random(_CHUNK)
