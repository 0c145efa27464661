"""Spaces with other choices for some dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from raynas.errors import ConfigError
from raynas.space.definition import write_dimensions
from raynas.space.dimension import Dimension
from raynas.space.space import Space
from raynas.space.values import Choice
from raynas.text import nearest, shown

Choices = Mapping[str, tuple[Choice, ...]]
"""Choices by dimension name."""


def with_choices(space: Space, choices: Choices, name: str | None = None) -> Space:
    """Return a space with other choices for some dimensions.

    With a depth, blocks beyond the largest choice are removed, and new blocks copy the last one. Constants that have
    the value derived from the dimensions by default are derived from the new ones.

    Raises:
        ConfigError: the family cannot build the space.
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
    """Return the constants of a space that differ from the family's defaults; not to be changed."""
    own = space.constants.model_dump(exclude_defaults=True)
    for name in list(own):
        without = {other: value for other, value in own.items() if other != name}
        try:
            same = Space.from_dict({**space.to_dict(), "constants": without}).constants == space.constants
        except ConfigError:
            same = False
        own = without if same else own
    return own


def with_fixed(space: Space, fixed: Mapping[str, Any]) -> Space:
    """Return a space with some dimensions held at one choice.

    Args:
        fixed: a choice by the name of a dimension, or of all those that are alike: `depth`, `blocks.*.heads`, and
            `blocks.0.heads` for one of them.

    Raises:
        ConfigError: there is no such dimension or choice.
    """
    choices: dict[str, tuple[Choice, ...]] = {}
    for name, value in fixed.items():
        found = [each for each in space.dimensions if name in (each.name, each.template)]
        if not found:
            known = [name for each in space.dimensions for name in (each.name, each.template)]
            raise ConfigError(f"fix: {space.name} has no dimension {shown(name)}{nearest(name, known)}")
        for each in found:
            if value not in each.choices or isinstance(value, bool) != isinstance(each.choices[0], bool):
                listed = ", ".join(map(str, each.choices))
                raise ConfigError(f"fix: {each.name} of {space.name} is one of {listed}, not {shown(value)}")
            choices[each.name] = (each.choices[each.choices.index(value)],)
    return with_choices(space, choices) if choices else space
