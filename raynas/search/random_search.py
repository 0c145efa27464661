"""Random search, the baseline of all other searches at equal budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raynas.errors import UserError
from raynas.search.base import Search, SearchArguments
from raynas.search.history import FINALISTS, Cut
from raynas.space import Codes, Space
from raynas.space.codes import Uniform
from raynas.text import shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CHUNK = 64


class RandomSearch(Search):
    """Random feasible archs without repeats; by default 1,050, as many as `Evolution` scores.

    Archs do not depend on scores, so it never waits for them. A smaller budget gives the first archs of a larger one.
    """

    learns = False
    default_evaluations = 1050

    def __init__(
        self,
        space: Space,
        *problem: Any,
        uniform_over: Uniform = "dimensions",
        **arguments: Unpack[SearchArguments],
    ):
        """Build the search; see `Search` for the arguments that all searches have.

        Args:
            uniform_over: make the choices of each dimension (`dimensions`) or all archs (`archs`) equally likely.
        """
        if uniform_over not in ("dimensions", "archs"):
            raise UserError(f"uniform_over is 'dimensions' or 'archs', not {shown(uniform_over)}")
        self.uniform_over = uniform_over
        super().__init__(space, *problem, **arguments)

    def cut(self) -> Cut:
        """Return the cut: the best score so far, or the front."""
        places = FINALISTS if self.constraints.functions and len(self.objectives.names) == 1 else 1
        return Cut(places, [row.arch for row in self.ranking(places)])

    def _next_generation(self) -> Codes:
        return self.candidates.random(_CHUNK)
