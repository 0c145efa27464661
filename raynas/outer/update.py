"""From moves to the next space: what the family can build, and no larger than allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raynas.errors import ConfigError
from raynas.outer.moves import Move, moved_axes
from raynas.space import Choice, Dimension, Space
from raynas.space.counting import shown_count
from raynas.space.definition import write_dimensions

Choices = Mapping[str, tuple[Choice, ...]]
"""By dimension name."""


def next_space(
    space: Space, moves: Sequence[Move], name: str, largest: float | None = None
) -> tuple[Space, list[Move]]:
    """The space after some moves.

    Args:
        space: before them.
        moves: from `measure_space`, one for each axis.
        name: of the next space.
        largest: the most archs that it may hold.

    Returns:
        The space (with no move left, the same one under its old name), and the moves as they were made: without
        choices that the family cannot build, and taken back where nothing else would do. Their notes say so.
    """
    wanted = {move.axis: move for move in moves}
    settled = _buildable(space, moved_axes(moves), name)
    wanted.update({move.axis: move for move in settled})
    wanted.update({move.axis: move for move in _capped(space, moved_axes(settled), name, largest)})
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
        for index in range(most if blocks else 0):
            block = blocks.get(index, blocks[max(blocks)])
            listed.update({f"{prefix}{index}.{leaf}": block[leaf] for leaf in block})
    definition = space.to_dict()
    definition["constants"] = _own_constants(space)
    definition["dimensions"] = write_dimensions(Dimension(each, listed[each]) for each in listed)
    definition["name"] = name or space.name
    return Space.from_dict(definition, definition["name"])


def _own_constants(space: Space) -> dict[str, Any]:
    """The constants of a space that are not what the family would fill in by itself."""
    definition = space.to_dict()
    constants = definition["constants"]
    for name in list(constants):
        without = {other: value for other, value in constants.items() if other != name}
        try:
            same = Space.from_dict({**definition, "constants": without}).constants == space.constants
        except ConfigError:
            same = False
        if same:
            constants.pop(name)
            definition["constants"] = constants
    return constants


def _choices(moves: Iterable[Move]) -> dict[str, tuple[Choice, ...]]:
    return {member: move.after for move in moves for member in move.members}


def _problem(space: Space, moves: Iterable[Move], name: str) -> str | None:
    """Why the family cannot build a space after some moves; None where it can."""
    try:
        with_choices(space, _choices(moves), name)
    except ConfigError as error:
        return str(error).removeprefix(f"{name}: ")
    return None


def _buildable(space: Space, moves: list[Move], name: str) -> list[Move]:
    """The moves so far as the family can build the space after them.

    All of them if it can; else one after the other, those first that can be made; of the rest single choices.
    """
    if _problem(space, moves, name) is None:
        return moves
    settled: list[Move] = []
    waiting, progress = list(moves), True
    while progress:  # a width may have to wait until the next stage's has made room for it
        progress = False
        for move in list(waiting):
            if _problem(space, [*settled, move], name) is None:
                settled.append(move)
                waiting.remove(move)
                progress = True
    for move in waiting:
        problems = {choice: _problem(space, [*settled, replace(move, after=(choice,))], name) for choice in move.after}
        kept = tuple(choice for choice, problem in problems.items() if problem is None)
        notes = tuple(f"{choice:g} removed: {problem}" for choice, problem in problems.items() if problem is not None)
        part = replace(move, after=kept, notes=(*move.notes, *notes))
        if kept and part.moved and _problem(space, [*settled, part], name) is None:
            settled.append(part)
        else:
            settled.append(part.stays("it stays: the family can build none of the others"))
    return settled


def _capped(space: Space, moves: list[Move], name: str, largest: float | None) -> list[Move]:
    """The moves, the least sure of those that enlarge the space taken back until it is no larger than allowed."""
    if largest is None:
        return moves
    made, left = {move.axis: move for move in moves}, sorted(moves, key=lambda move: move.sure)

    def count() -> int:
        return with_choices(space, _choices(moved_axes(list(made.values()))), name).cardinality()

    for move in left:
        before = count()
        if before <= largest:
            break
        note = f"taken back: the space would hold {shown_count(before)} archs, more than {largest:,.0f}"
        made[move.axis] = move.stays(note)
        if _problem(space, moved_axes(list(made.values())), name) is not None or count() >= before:
            made[move.axis] = move
    if count() > largest:  # each alone is not enough, or not possible without another
        return [move.stays(f"taken back: no space of at most {largest:,.0f} archs was found") for move in moves]
    return list(made.values())
