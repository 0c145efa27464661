"""Alignment of a sampler's depths with a budget: its random networks have the target cost on average (ViTAS, v1).

ViTAS drops every block with one probability q, the identity probability, found by simulation: q moves in steps of 0.01
until the mean cost of 1,000 random networks is in the window. Here the mean is computed exactly and solved for q.
"""

from __future__ import annotations

import math
from functools import lru_cache

from raynas.costs.expectation import expected_cost
from raynas.errors import ConfigError, InfeasibleError
from raynas.space import Distribution, Space


def dropping(space: Space, q: float) -> Distribution:
    """Return the distribution that drops every block with probability q and draws all other choices uniformly.

    A block with its own choice (`kept`) is dropped with probability q. A `depth` follows the binomial distribution of
    the number of blocks left when each is dropped with q, restricted to the depths of the space (ViTAS's identity
    shifting).

    Raises:
        ConfigError: the space has no choice of either kind.
    """
    weights = {}
    for dimension in space.dimensions:
        leaf = dimension.name.rpartition(".")[2]
        if len(dimension.choices) > 1 and leaf == "kept":
            weights[dimension.name] = [1 - q if kept else q for kept in dimension.choices]
        elif len(dimension.choices) > 1 and leaf == "depth":
            least, most = min(dimension.choices), max(dimension.choices)
            # Divided by (1 - q) ** least, which all share: it would be 0 for deep spaces.
            weights[dimension.name] = [
                math.comb(most, d) * (1 - q) ** (d - least) * q ** (most - d) for d in dimension.choices
            ]
    if not weights:
        raise ConfigError(f"space {space.name}: there is no choice of depth or of blocks kept to align a budget with")
    return Distribution.uniform(space).with_weights(weights)


@lru_cache(maxsize=32)
def aligned(space: Space, name: str, low: float, high: float) -> Distribution:
    """Return the distribution of `dropping` whose expected cost is the middle of a window.

    Args:
        low, high: the window.

    Raises:
        ConfigError: the space has neither depths nor blocks to drop, or `low` is above `high`.
        InfeasibleError: no q in (0, 1) gives that cost; the message gives the range of possible averages.
    """
    if not low <= high:  # rejects NaN too
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
