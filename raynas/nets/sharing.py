"""Weight-sharing patterns: which channels of an axis a smaller width uses.

A pattern is a function `(count, total) -> Channels` over units; `total` is what the parameters hold. Taking all of an
axis must give the whole axis in its own order, so that an extracted network (whose axes are all whole) computes the
same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from raynas.nets.channels import Channels
from raynas.nets.cyclic import cyclic_starts
from raynas.space import Space
from raynas.space.families.rules import CommonConstants

Side = Literal["left", "right"]
Sharing = Callable[[int, int], Channels]

SIDES: dict[str, tuple[Side | None, ...]] = {"ordinal": (None,), "cyclic": (None,), "bilateral": ("left", "right")}
"""The paths of each pattern; each is trained, and a score is from the mean of their logits."""


def sides_of(space: Space) -> tuple[Side | None, ...]:
    """The paths of a space's networks. In a one-point space every width is the whole axis, whatever the pattern."""
    alone = all(len(dimension.choices) == 1 for dimension in space.dimensions)
    return (None,) if alone else SIDES[space.constants.sharing]


NESTED = frozenset({"ordinal"})
"""Patterns whose widths are prefixes of one another, which masks can therefore express."""


def pattern(constants: CommonConstants, side: Side | None) -> Sharing:
    """The pattern that a space's constants name, on one of its sides."""
    if constants.sharing == "cyclic":
        assert constants.groups is not None
        return partial(cyclic, groups=constants.groups)
    return suffix if side == "right" else prefix


def prefix(count: int, total: int) -> Channels:
    """The first `count` units: every smaller width is a part of the larger ones (ordinal; bilateral's left path)."""
    del total
    return Channels.first(count)


def suffix(count: int, total: int) -> Channels:
    """The last `count` units (bilateral's right path; BCNet)."""
    return Channels(((total - count, total),))


def cyclic(count: int, total: int, groups: int) -> Channels:
    """`count` units from a start of their own, wrapping around, so that all units are trained alike (ViTAS v2, Eq. 6).

    The axis is divided into groups. A width of nearest j groups starts where the solver puts j groups, at the nearest
    unit, and has exactly `count` units: where the groups do not divide the axis, its last group is not a whole one.
    """
    nearest = min(max(round(count * groups / total), 1), groups)
    start = 0 if count >= total else round(cyclic_starts(groups).starts[nearest - 1] * total / groups) % total
    over = max(start + count - total, 0)
    head = (start, start + count - over)
    return Channels((head, (0, over)) if over else (head,))
