"""The s3 networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`.

    If all places run, shifted windows go by places, so that blocks keep theirs when others are left out.
    """
    values, held = unrolled(space.smallest()), {}
    if space.constants.head_dim is None:
        held["heads"] = "they divide a searched query width"
    all_run = all(value for name, value in values.items() if name.endswith(".kept"))
    return Whole({"shifts": "places"} if all_run else {}, values, held)
