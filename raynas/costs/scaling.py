"""Scaling of an arch's widths to a MACs budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raynas.costs.cost import cost
from raynas.errors import InfeasibleError, UserError
from raynas.space import Arch, Space
from raynas.space.families import family_of


def scale_to_macs(space: Space, arch: Mapping[str, Any], macs: float) -> Arch:
    """Multiply an arch's widths by the factor that brings its MACs nearest to `macs`.

    Depth, heads and ratios stay, so a hand-designed network keeps its shape. The result has a one-point space of its
    own, with the images and classes of `space`; `arch` need not be among the choices of `space`.

    Raises:
        UserError: `macs` is not a positive number.
        InfeasibleError: the family has no widths that large. (With too few MACs the narrowest network is returned.)
    """
    if not (isinstance(macs, int | float) and math.isfinite(macs) and macs > 0):
        raise UserError(f"MACs to scale to must be a positive number, found {macs!r}")
    shape = space.arch(arch) if arch in space else space.off_grid(arch)
    scale = family_of(space.family).scale

    def count(scaled: Arch) -> int:
        return int(cost(scaled.space, [scaled])["macs"][0])

    def at(factor: float) -> Arch:
        try:
            constants, values = scale(shape.space.constants, shape, factor)
            return replace(shape.space, constants=constants).off_grid(values)
        except UserError as error:
            raise InfeasibleError(f"cannot scale arch {shape.id} to {macs:.0f} MACs: {error}") from error

    low, high = 0.0, 1.0
    while count(at(high)) < macs:
        low, high = high, 2 * high
    # Widths are whole channels, so MACs rise in steps: bisect to the step that crosses `macs`.
    while high - low > 1e-7 * high and high > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if count(at(middle)) < macs else (low, middle)
    below, above = at(low), at(high)
    return min(below, above, key=lambda scaled: abs(count(scaled) - macs))
