"""The vit networks' part of elastic spaces."""

from __future__ import annotations

from raynas.families.vit.cost import slots
from raynas.space import Space
from raynas.space.elastic import Whole, unrolled


def whole(space: Space) -> Whole:
    """Return the network of a one-point space with every block for itself; see `raynas.space.elastic.Whole`."""
    constants, values = space.constants, dict(space.smallest())
    if space.has("block.heads"):  # one block, stacked
        stacked = {name: values.pop(name) for name in list(values) if name.startswith("block.")}
        values["depth"] = depth = slots(space)
        for index in range(depth):
            values |= {name.replace("block.", f"blocks.{index}."): value for name, value in stacked.items()}
    held = {}
    if constants.head_dim is None or constants.private_heads != "none":
        held["heads"] = "they divide a searched query width, or have private parameters"
    elif constants.qkv_bias == "thirds":
        held["heads"] = "with qkv_bias: thirds other heads have other biases"
    return Whole({"depth_macs": None, "max_depth": None}, unrolled(values), held)
