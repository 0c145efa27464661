"""Sampling of archs within cost bounds: by rejection or, if few archs meet the bounds, from a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from raynas.costs.constraints import Bounds, Constraints, interval
from raynas.costs.cost import COSTS, cost
from raynas.costs.window import window_of
from raynas.space import Codes, Distribution, Space
from raynas.space.codes import Uniform

LIMIT = 10_000
"""Consecutive random archs that may miss the bounds before sampling gives up."""

Bound = tuple[str, float, float]

_PROBES = 2_000
_FEW = 0.02
"""The share of probes within the bounds below which a window is worth making."""


def sample_within(
    space: Space,
    constraints: Constraints | Mapping[str, Bounds],
    rng: np.random.Generator,
    n: int,
    uniform_over: Uniform = "dimensions",
    limit: int = LIMIT,
) -> Codes:
    """Draw n random archs that meet constraints, as codes [n, dimensions]; archs may repeat.

    Archs are distributed as by `Space.sample_codes`, given the bounds. They are drawn by it and rejected if they miss
    the bounds. If nearly all would miss, archs are drawn from the window of the narrowest bound instead (see
    `raynas.costs.window`) and rejected if they miss the other bounds.

    Args:
        constraints: the bounds, by cost.
        uniform_over: see `Space.sample_codes`.
        limit: give up after this many consecutive draws that miss the bounds.

    Raises:
        InfeasibleError: no arch meets the bounds, or it gave up; the message says which, and gives the space's span.
    """
    if not isinstance(constraints, Constraints):
        constraints = Constraints(space, constraints)
    constraints.check_feasible()
    narrow = narrowest_bound(constraints, uniform_over)
    draw: Callable[[np.random.Generator, int], Codes] = partial(space.sample_codes, uniform_over=uniform_over)
    if narrow is not None:
        draw = window_of(Distribution.uniform(space, uniform_over), *narrow).sample_codes
    found = [space.sample_codes(rng, 0, uniform_over)]
    among = "" if narrow is None else f" with {narrow[0]} in {interval(*narrow[1:])}"
    count = missed = 0
    batch = max(n, 16)
    while count < n:
        drawn = draw(rng, min(batch, limit - missed))
        kept = drawn[constraints.feasible(drawn)]
        found.append(kept)
        count += len(kept)
        missed = 0 if len(kept) else missed + len(drawn)
        if missed >= limit:
            raise constraints.infeasible(missed, count, among)
        batch = min(2 * batch, limit)
    return np.concatenate(found)[:n]


def narrowest_bound(constraints: Constraints, uniform_over: Uniform = "dimensions") -> Bound | None:
    """Return the bound on a counted cost, (cost, low, high), that fewest archs meet; None if enough meet all bounds.

    Raises:
        InfeasibleError: no arch meets a bound.
    """
    counted = tuple((name, *bounds) for name, bounds in sorted(constraints.bounds.items()) if name in COSTS)
    return _narrowest(constraints.space, counted, uniform_over)


@lru_cache(maxsize=64)
def _narrowest(space: Space, bounds: tuple[Bound, ...], uniform_over: Uniform) -> Bound | None:
    # A fixed seed: the choice depends on the arguments only, so the caller's seed reproduces the same archs.
    codes = space.sample_codes(np.random.default_rng(0), _PROBES, uniform_over)
    costs = cost(space, codes)
    meets = [(low <= costs[name]) & (costs[name] <= high) for name, low, high in bounds]
    if np.logical_and.reduce([np.ones(_PROBES, dtype=bool), *meets]).mean() >= _FEW:
        return None
    fewest = min(each.sum() for each in meets)
    narrow = [each for each, met in zip(bounds, meets, strict=True) if met.sum() == fewest]
    if len(narrow) == 1:
        return narrow[0]
    distribution = Distribution.uniform(space, uniform_over)
    return min(narrow, key=lambda each: window_of(distribution, *each).share)
