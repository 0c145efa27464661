"""The vit_res networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`.

    A residual reduction only adds channels, so no stage is narrower than the one before may be.
    """
    values, least = unrolled(space.smallest()), {}
    if space.constants.reduction == "residual":
        widths = [value for name, value in values.items() if name.endswith(".width")]
        least = {f"stages.{stage}.width": before for stage, before in enumerate(widths[:-1], start=1)}
    return Whole({}, values, least=least)
