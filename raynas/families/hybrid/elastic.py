"""The hybrid networks' part of elastic spaces."""

from __future__ import annotations

from raynas.families.hybrid.space import hidden_width
from raynas.space import Space
from raynas.space.elastic import Whole


def whole(space: Space) -> Whole:
    """Return the network of a one-point space; see `raynas.space.elastic.Whole`.

    Blocks run by depth, so the last of a stage go first, and transformers keep one, without which their choices would
    not act. Expansions stay above those that give as many hidden channels as the next, by rounding.
    """
    constants, values = space.constants, dict(space.smallest())
    held = {"width": "shortcuts and factors are for stages of these widths"}
    if constants.scaling == "depth_tokens" and "transformer" in constants.kinds:
        held["dropped"] = "blocks have factors for this depth alone"
    least = {f"stages.{stage}.depth": 2 for stage, kind in enumerate(constants.kinds) if kind == "transformer"}
    inputs = values["stem.width"]
    for stage in range(len(constants.kinds)):
        expansion = values[f"stages.{stage}.expansion"]
        hidden = [hidden_width(constants, stage, inputs, each) for each in range(1, expansion + 1)]
        same = [each for each in range(1, expansion) if hidden[each - 1] == hidden[each]]
        least[f"stages.{stage}.expansion"] = max(same, default=0) + 1
        inputs = values[f"stages.{stage}.width"]
    return Whole({}, values, held, least)
