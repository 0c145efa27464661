"""Random archs for samplers, from the whole space or within a cost budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from raynas.config import holds_boolean
from raynas.costs import COSTS, sample_within
from raynas.costs.alignment import aligned
from raynas.errors import ConfigError
from raynas.space import Arch, Distribution, Space
from raynas.space.codes import Uniform
from raynas.text import nearest, shown

Budget = Mapping[str, Sequence[float | None]]
"""Inclusive bounds by cost: `{"macs": [0.9e9, 1.0e9]}`; None leaves a side open."""

DRAW_OPTIONS = ("uniform_over", "align", "within", "dealt")
"""The sampler options that `draw` takes."""

_BUDGET = pydantic.TypeAdapter(dict[str, tuple[pydantic.FiniteFloat | None, pydantic.FiniteFloat | None]])


def draw(
    space: Space,
    rng: np.random.Generator,
    n: int,
    uniform_over: Uniform = "dimensions",
    align: Budget | None = None,
    within: Budget | None = None,
    dealt: bool = False,
) -> list[Arch]:
    """Draw n random archs.

    Args:
        uniform_over: what is equally likely: the choices of each dimension (`dimensions`), or all archs (`archs`).
        align: a cost with a window; the average cost is moved to its middle by dropping more or fewer blocks (ViTAS;
            see `raynas.costs.alignment`). Single archs may be outside.
        within: bounds that every arch meets.
        dealt: make the archs of a step differ as much as possible; see `Space.deal_codes`.

    Raises:
        ConfigError: `align` or `within` is malformed, or options exclude each other.
        InfeasibleError: the space has no such archs.
    """
    check_draw(align, within, uniform_over, dealt)
    if align is not None:
        return space.decode(_aligned(space, align).sample_codes(rng, n))
    if within is not None:
        return space.decode(sample_within(space, read_budget("within", within), rng, n, uniform_over))
    return space.decode(space.deal_codes(rng, n) if dealt else space.sample_codes(rng, n, uniform_over))


def distribution(space: Space, uniform_over: Uniform = "dimensions", align: Budget | None = None) -> Distribution:
    """Return the distribution of each single arch of `draw` without `within`; dealt archs are uniform too.

    Raises:
        InfeasibleError: the space has no such archs.
    """
    return _aligned(space, align) if align is not None else Distribution.uniform(space, uniform_over)


def check_draw(align: Any = None, within: Any = None, uniform_over: Any = "dimensions", dealt: Any = False) -> None:
    """Refuse options that are wrong for any space; the message says why."""
    if align is not None and within is not None:
        raise ConfigError("give align (the average meets a budget) or within (every arch does), not both")
    if uniform_over not in ("dimensions", "archs"):
        raise ConfigError(f"uniform_over is dimensions or archs, not {shown(uniform_over)}")
    if not isinstance(dealt, bool):
        raise ConfigError(f"dealt must be true or false, not {shown(dealt)}")
    if dealt and (align is not None or within is not None or uniform_over != "dimensions"):
        raise ConfigError("dealt archs are uniform over dimensions: leave out align, within and uniform_over")
    if within is not None:
        read_budget("within", within)
    if align is not None:
        bounds = read_budget("align", align)
        if len(bounds) != 1 or None in next(iter(bounds.values())):
            raise ConfigError("align: give one cost with both bounds, such as {macs: [0.9e+9, 1.0e+9]}")
        if uniform_over != "dimensions":
            raise ConfigError("align decides on the depths: it goes with uniform_over: dimensions alone")


def _aligned(space: Space, align: Budget) -> Distribution:
    ((name, (low, high)),) = read_budget("align", align).items()
    assert low is not None and high is not None
    return aligned(space, name, low, high)


def read_budget(option: str, value: Any) -> dict[str, tuple[float | None, float | None]]:
    """Convert bounds by cost to numbers, since YAML reads some, such as 5e5, as text.

    Raises:
        ConfigError: the bounds are malformed; the message says why.
    """
    try:
        if holds_boolean(value, mapping=True):  # pydantic would read them as 0 and 1
            raise ValueError("true and false are not numbers")
        bounds = _BUDGET.validate_python(value)
    except ValueError as error:  # including pydantic's
        form = "{macs: [0.9e+9, 1.0e+9]}, null for an open side"
        raise ConfigError(f"{option}: give bounds by cost, such as {form}, not {shown(value)}") from error
    for name, (low, high) in bounds.items():
        if name not in COSTS:
            raise ConfigError(f"{option}: no cost {shown(name)}{nearest(name, COSTS)}")
        if low is not None and high is not None and low > high:
            raise ConfigError(f"{option}: {name}: the lower bound {low:g} is above the upper bound {high:g}")
    return bounds
