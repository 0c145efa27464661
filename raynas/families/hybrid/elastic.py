"""The hybrid networks' part of elastic spaces."""

from __future__ import annotations

from raynas.space import Space
from raynas.space.elastic import Whole


def whole(space: Space) -> Whole:
    """Return the network of a one-point space; see `raynas.space.elastic.Whole`.

    Blocks run by depth, so the last of a stage go first, and transformers keep one, without which their choices would
    not act.
    """
    constants, values = space.constants, dict(space.smallest())
    held = {"width": "shortcuts and factors are for stages of these widths"}
    if constants.scaling == "depth_tokens" and "transformer" in constants.kinds:
        held["dropped"] = "blocks have factors for this depth alone"
    transformers = [stage for stage, kind in enumerate(constants.kinds) if kind == "transformer"]
    return Whole({}, values, held, {f"stages.{stage}.depth": 2 for stage in transformers})
