"""The next space after some moves: one that the family can build, within size and cost limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from raynas.costs import Bounds, sample_within, span
from raynas.costs.constraints import interval
from raynas.errors import ConfigError, InfeasibleError
from raynas.outer.evolution.moves import Move, moved_axes
from raynas.space import Choice, Space
from raynas.space.choices import with_choices
from raynas.space.counting import shown_count

_DRAWS = 8  # for each arch that a space must have within the constraints


@dataclass(frozen=True)
class Limits:
    """Limits of a next space.

    Attributes:
        largest: maximum number of archs; None for no limit.
        constraints: bounds by cost that some archs must meet.
        fewest: minimum number of archs that meet them.
    """

    largest: float | None = None
    constraints: Mapping[str, Bounds] = field(default_factory=dict)
    fewest: int = 1

    def broken(self, space: Space) -> str | None:
        """Return a description of the limit that a space breaks, or None."""
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
        """Return the number of archs found within the constraints, with enough draws to tell if they are `fewest`."""
        try:
            codes = sample_within(space, self.constraints, np.random.default_rng(0), _DRAWS * self.fewest)
        except InfeasibleError:
            return 0
        return len(set(space.decode(codes)))


def next_space(
    space: Space, moves: Sequence[Move], name: str, limits: Limits | None = None
) -> tuple[Space, list[Move]]:
    """Return the space after some moves, and the moves as they were made.

    Args:
        moves: moves from `measure_space`, one for each axis.

    Returns:
        The next space (the same one under its old name if no move is left), and the moves as made: without choices
        that the family cannot build, or taken back, with notes.
    """
    wanted = {move.axis: move for move in moves}
    settled = _buildable(space, moved_axes(moves), name)
    wanted.update({move.axis: move for move in settled})
    wanted.update({move.axis: move for move in _bounded(space, moved_axes(settled), name, limits or Limits())})
    made = [wanted[move.axis] for move in moves]
    going = moved_axes(made)
    return (with_choices(space, _choices(going), name) if going else space), made


def _choices(moves: Iterable[Move]) -> dict[str, tuple[Choice, ...]]:
    return {member: move.after for move in moves for member in move.members}


def _unbuildable(space: Space, moves: Iterable[Move], name: str) -> str | None:
    """Return the reason why the family cannot build a space after some moves, or None."""
    try:
        with_choices(space, _choices(moves), name)
    except ConfigError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def _settle(moves: Sequence[Move], problem: Callable[[list[Move]], str | None]) -> tuple[list[Move], list[Move]]:
    """Split moves into those that can be made together and the others, greedily, the surest first.

    Moves that do not fit are tried again after others: a width may first fit after the next stage's has grown, or a
    costly move after one that saves.
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
    """Return the moves that the family can build, the others reduced to the choices that it can build."""
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
    """Return the moves, with those that would break the limits taken back."""

    def problem(made: list[Move]) -> str | None:
        if (why := _unbuildable(space, made, name)) is not None:
            return why
        return limits.broken(with_choices(space, _choices(made), name))

    settled, waiting = _settle(moves, problem)
    return [
        *settled,
        *(move.stays(f"not made: with the moves that are, {problem([*settled, move])}") for move in waiting),
    ]
