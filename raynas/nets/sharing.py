"""Weight-sharing patterns: which channels of an axis a smaller width uses.

A pattern is a function `(count, total) -> Channels` over units; `total` is what the parameters hold. Taking all of an
axis must give the whole axis in its own order, so that an extracted network (whose axes are all whole) computes the
same thing.
"""

from __future__ import annotations

from collections.abc import Callable

from raynas.nets.channels import Channels

Sharing = Callable[[int, int], Channels]


def ordinal(count: int, total: int) -> Channels:
    """The first `count` units: every smaller width is a prefix of the larger ones."""
    del total
    return Channels.first(count)


PATTERNS: dict[str, Sharing] = {"ordinal": ordinal}
NESTED = frozenset({"ordinal"})
"""Patterns whose widths are prefixes of one another, which masks can therefore express."""
