"""Weight-sharing patterns: the channels of an axis used by smaller widths.

A pattern is a function `(count, total, kind) -> Channels` over units; `total` is the parameters' number of units. The
full count must select the whole axis in order, so that an extracted network, whose axes are whole, computes the same.
The kind of the units, if they may change places, does not matter to a pattern: it is for `raynas.nets.units`.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, Protocol

from raynas.nets.channels import Channels
from raynas.nets.cyclic import cyclic_starts
from raynas.space import Space
from raynas.space.rules import CommonConstants

Side = Literal["left", "right"]
Kind = Literal["width", "heads", "hidden"]
"""The dimension that says how many units act: channels of the residual stream, heads, or hidden channels."""


class Sharing(Protocol):
    """A weight-sharing pattern."""

    def __call__(self, count: int, total: int, kind: Kind | None = None) -> Channels:
        """Return `count` of an axis's units; `kind` is None if these cannot change places."""
        ...


SIDES: dict[str, tuple[Side | None, ...]] = {"ordinal": (None,), "cyclic": (None,), "bilateral": ("left", "right")}
"""The paths of each pattern; all are trained, and a score uses the mean of their logits."""


def sides_of(space: Space) -> tuple[Side | None, ...]:
    """Return the paths of a space's networks; a one-point space has a single path, since every width is whole."""
    alone = all(len(dimension.choices) == 1 for dimension in space.dimensions)
    return (None,) if alone else SIDES[space.constants.sharing]


NESTED = frozenset({"ordinal"})
"""Patterns whose widths are prefixes of one another, as masks require."""


def pattern(constants: CommonConstants, side: Side | None) -> Sharing:
    """Return the pattern of a space's constants, for one of its sides."""
    if constants.sharing == "cyclic":
        assert constants.groups is not None
        return partial(cyclic, groups=constants.groups)
    return suffix if side == "right" else prefix


def prefix(count: int, total: int, kind: Kind | None = None) -> Channels:
    """Select the first `count` units, so that smaller widths are nested in larger ones (ordinal; bilateral's left)."""
    del total, kind
    return Channels.first(count)


def suffix(count: int, total: int, kind: Kind | None = None) -> Channels:
    """Select the last `count` units (bilateral's right path; BCNet)."""
    del kind
    return Channels(((total - count, total),))


def cyclic(count: int, total: int, kind: Kind | None = None, *, groups: int) -> Channels:
    """Select `count` units from the width's own start, wrapping around, to train all units evenly (ViTAS v2, Eq. 6).

    The axis is divided into groups. A width rounded to j groups starts at the unit nearest to the solver's start for j
    groups. It has exactly `count` units, so its last group may be partial if the groups do not divide the axis.
    """
    del kind
    nearest = min(max(round(count * groups / total), 1), groups)
    start = 0 if count >= total else round(cyclic_starts(groups).starts[nearest - 1] * total / groups) % total
    over = max(start + count - total, 0)
    head = (start, start + count - over)
    return Channels((head, (0, over)) if over else (head,))
