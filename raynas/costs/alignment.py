"""A sampler's depths, chosen so that the networks that it draws cost on average what is wanted (ViTAS, v1).

There every block is dropped with one probability q, the identity probability, which is found by simulation: q moves in
steps of 0.01 until the mean of 1,000 random networks is in the window. Here the mean is computed, and q is solved for.
"""

from __future__ import annotations

import math
from functools import lru_cache

from raynas.costs.expectation import expected_cost
from raynas.errors import ConfigError, InfeasibleError
from raynas.space import Distribution, Space


def dropping(space: Space, q: float) -> Distribution:
    """Every block dropped with probability q, and all other choices uniform.

    A block that may be dropped anywhere (`kept`) is dropped with q. Where the last blocks are dropped (`depth`), the
    depth is distributed as the number of blocks left is when each of them is dropped with q, whichever those are (the
    form that ViTAS's identity shifting gives to the rule), among the depths that there are.

    Raises:
        ConfigError: the space has no choice of either kind.
    """
    weights = {}
    for dimension in space.dimensions:
        leaf = dimension.name.rpartition(".")[2]
        if len(dimension.choices) > 1 and leaf == "kept":
            weights[dimension.name] = [1 - q if kept else q for kept in dimension.choices]
        elif len(dimension.choices) > 1 and leaf == "depth":
            most = max(dimension.choices)
            weights[dimension.name] = [math.comb(most, d) * (1 - q) ** d * q ** (most - d) for d in dimension.choices]
    if not weights:
        raise ConfigError(f"space {space.name}: there is no choice of depth or of blocks kept to align a budget with")
    return Distribution.uniform(space).with_weights(weights)


@lru_cache(maxsize=32)
def aligned(space: Space, name: str, low: float, high: float) -> Distribution:
    """The distribution of `dropping` under which the expected cost is the middle of a window.

    Args:
        space: the space.
        name: of the cost.
        low, high: the window.

    Raises:
        ConfigError: the space has neither depths nor blocks to drop, or the window is none.
        InfeasibleError: no q in (0, 1) gives that cost; the message says what costs are reached.
    """
    if not low <= high:  # NaN is not, either
        raise ConfigError(f"align {name}: the lower bound {low:g} is not below the upper bound {high:g}")
    target = (low + high) / 2

    def expected(q: float) -> float:
        return expected_cost(dropping(space, q))[name]

    kept, dropped = 1e-9, 1 - 1e-9  # at 0 and 1 the weights of all depths may vanish
    most, least = expected(kept), expected(dropped)
    if not least <= target <= most:
        raise InfeasibleError(
            f"no probability of dropping blocks gives {name} of {target:.4g} on average: this space's averages go from "
            f"{least:.4g} (few blocks) to {most:.4g} (all of them)"
        )
    for _ in range(60):
        q = (kept + dropped) / 2
        kept, dropped = (q, dropped) if expected(q) > target else (kept, q)
    return dropping(space, (kept + dropped) / 2)
