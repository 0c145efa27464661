"""The s3 networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`."""
    held = {} if space.constants.head_dim is not None else {"heads": "they divide a searched query width"}
    return Whole({}, unrolled(space.smallest()), held)
