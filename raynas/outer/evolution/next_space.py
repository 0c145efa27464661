"""From moves to the next space: what the family can build, and no larger than allowed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from raynas.costs import Bounds, sample_within, span
from raynas.costs.constraints import interval
from raynas.errors import ConfigError, InfeasibleError
from raynas.outer.evolution.moves import Move, moved_axes
from raynas.space import Choice, Dimension, Space
from raynas.space.counting import shown_count
from raynas.space.definition import write_dimensions

Choices = Mapping[str, tuple[Choice, ...]]
"""By dimension name."""

_DRAWS = 8  # for each arch that a space must have within the constraints


@dataclass(frozen=True)
class Limits:
    """What a next space must keep to.

    Attributes:
        largest: the most archs that it may hold; None for any number.
        constraints: bounds by cost that some of its archs must meet.
        fewest: how many.
    """

    largest: float | None = None
    constraints: Mapping[str, Bounds] = field(default_factory=dict)
    fewest: int = 1

    def broken(self, space: Space) -> str | None:
        """Which limit a space does not keep; None where it keeps all."""
        if self.largest is not None and (count := space.cardinality()) > self.largest:
            return f"the space would hold {shown_count(count)} archs, more than {self.largest:,.0f}"
        for cost, (low, high) in self.constraints.items():
            least, greatest = span(space)[cost]
            if (high is not None and least > high) or (low is not None and greatest < low):
                bounds = interval(-math.inf if low is None else low, math.inf if high is None else high)
                return f"no arch would have {cost} in {bounds}, but in {interval(least, greatest)}"
        if self.constraints and (found := self._within(space)) < self.fewest:
            return f"only {found} arch(s) would meet the constraints, fewer than {self.fewest}"
        return None

    def _within(self, space: Space) -> int:
        """How many archs of a space are found within the constraints, where more than the fewest make no difference."""
        try:
            codes = sample_within(space, self.constraints, np.random.default_rng(0), _DRAWS * self.fewest)
        except InfeasibleError:
            return 0
        return len(set(space.decode(codes)))


def next_space(
    space: Space, moves: Sequence[Move], name: str, limits: Limits | None = None
) -> tuple[Space, list[Move]]:
    """The space after some moves.

    Args:
        space: before them.
        moves: from `measure_space`, one for each axis.
        name: of the next space.
        limits: of the next space.

    Returns:
        The space (with no move left, the same one under its old name), and the moves as they were made: without
        choices that the family cannot build, and taken back where nothing else would do. Their notes say so.
    """
    wanted = {move.axis: move for move in moves}
    settled = _buildable(space, moved_axes(moves), name)
    wanted.update({move.axis: move for move in settled})
    wanted.update({move.axis: move for move in _bounded(space, moved_axes(settled), name, limits or Limits())})
    made = [wanted[move.axis] for move in moves]
    going = moved_axes(made)
    return (with_choices(space, _choices(going), name) if going else space), made


def with_choices(space: Space, choices: Choices, name: str | None = None) -> Space:
    """A space with other choices for some dimensions.

    A depth takes its blocks with it: those beyond the largest go, and new ones are like the last that there was. A
    constant that has the value that follows from the dimensions by default follows the new ones, too.

    Raises:
        ConfigError: the family cannot build it.
    """
    listed = {dimension.name: choices.get(dimension.name, dimension.choices) for dimension in space.dimensions}
    for depth in [each for each in listed if each.rpartition(".")[2] == "depth"]:
        prefix, most = f"{depth.removesuffix('depth')}blocks.", max(listed[depth])
        blocks: dict[int, dict[str, tuple[Choice, ...]]] = {}
        for each in [each for each in listed if each.startswith(prefix)]:
            index, _, leaf = each.removeprefix(prefix).partition(".")
            blocks.setdefault(int(index), {})[leaf] = listed.pop(each)
        for place in range(most if blocks else 0):
            block = blocks.get(place, blocks[max(blocks)])
            listed.update({f"{prefix}{place}.{leaf}": block[leaf] for leaf in block})
    definition = space.to_dict()
    definition["constants"] = _own_constants(space)
    definition["dimensions"] = write_dimensions(Dimension(each, listed[each]) for each in listed)
    definition["name"] = name or space.name
    return Space.from_dict(definition, definition["name"])


@lru_cache(maxsize=8)
def _own_constants(space: Space) -> dict[str, Any]:
    """The constants of a space that are not what the family would fill in by itself; not to be changed."""
    own = space.constants.model_dump(exclude_defaults=True)
    for name in list(own):
        without = {other: value for other, value in own.items() if other != name}
        try:
            same = Space.from_dict({**space.to_dict(), "constants": without}).constants == space.constants
        except ConfigError:
            same = False
        own = without if same else own
    return own


def _choices(moves: Iterable[Move]) -> dict[str, tuple[Choice, ...]]:
    return {member: move.after for move in moves for member in move.members}


def _unbuildable(space: Space, moves: Iterable[Move], name: str) -> str | None:
    """Why the family cannot build a space after some moves; None where it can."""
    try:
        with_choices(space, _choices(moves), name)
    except ConfigError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def _settle(moves: Sequence[Move], problem: Callable[[list[Move]], str | None]) -> tuple[list[Move], list[Move]]:
    """The moves that can be made together, and the others: the surest first, again and again until no other fits.

    A width may have to wait until the next stage's has made room for it, a costly move for one that saves.
    """
    if problem(list(moves)) is None:
        return list(moves), []
    settled: list[Move] = []
    waiting, progress = sorted(moves, key=lambda move: -move.sure), True
    while progress:
        progress = False
        for move in list(waiting):
            if problem([*settled, move]) is None:
                settled.append(move)
                waiting.remove(move)
                progress = True
    return settled, waiting


def _buildable(space: Space, moves: list[Move], name: str) -> list[Move]:
    """The moves as far as the family can build the space after them; of those that it cannot, single choices."""
    settled, waiting = _settle(moves, lambda made: _unbuildable(space, made, name))
    for move in waiting:
        tried = {choice: [*settled, replace(move, after=(choice,))] for choice in move.after}
        problems = {choice: _unbuildable(space, made, name) for choice, made in tried.items()}
        kept = tuple(choice for choice, problem in problems.items() if problem is None)
        notes = tuple(f"{choice:g} removed: {problem}" for choice, problem in problems.items() if problem is not None)
        part = replace(move, after=kept, notes=(*move.notes, *notes))
        if kept and part.moved and _unbuildable(space, [*settled, part], name) is None:
            settled.append(part)
        else:
            settled.append(part.stays("it stays: the family can build none of the others"))
    return settled


def _bounded(space: Space, moves: list[Move], name: str, limits: Limits) -> list[Move]:
    """The moves without those that lead out of the limits."""

    def problem(made: list[Move]) -> str | None:
        if (why := _unbuildable(space, made, name)) is not None:
            return why
        return limits.broken(with_choices(space, _choices(made), name))

    settled, waiting = _settle(moves, problem)
    return [
        *settled,
        *(move.stays(f"not made: with the moves that are, {problem([*settled, move])}") for move in waiting),
    ]
