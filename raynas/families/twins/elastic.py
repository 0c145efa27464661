"""The twins networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`."""
    return Whole({}, unrolled(space.smallest()), {"heads": "they divide a searched query width"})
