"""Random archs within bounds: by drawing and throwing away, or where those within are few, out of a window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import numpy as np

from raynas.costs.constraints import Bounds, Constraints, interval
from raynas.costs.total import COSTS, cost
from raynas.costs.window import window_of
from raynas.space import Codes, Distribution, Space
from raynas.space.space import Uniform

LIMIT = 10_000
"""Random archs in a row that may miss the bounds before the search for one is given up."""

Bound = tuple[str, float, float]

_PROBES = 2_000
_FEW = 0.02
"""Where fewer of the probes meet the bounds, windows are worth their making."""


def sample_within(
    space: Space,
    constraints: Constraints | Mapping[str, Bounds],
    rng: np.random.Generator,
    n: int,
    uniform_over: Uniform = "dimensions",
    limit: int = LIMIT,
) -> Codes:
    """n random archs that meet constraints, as codes [n, dimensions]; the same arch may come more than once.

    Archs have the probabilities that `Space.sample_codes` gives them, among those within the bounds. They are drawn as
    it draws them, and the ones that miss the bounds are thrown away; where these are nearly all, archs are drawn out of
    the window of the narrowest bound (see `raynas.costs.window`), and the ones that miss the others are thrown away.

    Args:
        limit: give up after this many draws in a row without one that meets the bounds.

    Raises:
        InfeasibleError: no arch meets the bounds, or it gave up; the message says which, and what the space spans.
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
    """The counted bound, (cost, low, high), that fewest archs meet; None where enough archs meet all of them.

    Raises:
        InfeasibleError: no arch meets a bound.
    """
    counted = tuple((name, *bounds) for name, bounds in sorted(constraints.bounds.items()) if name in COSTS)
    return _narrowest(constraints.space, counted, uniform_over)


@lru_cache(maxsize=64)
def _narrowest(space: Space, bounds: tuple[Bound, ...], uniform_over: Uniform) -> Bound | None:
    # It depends on its arguments alone, so that the same seed gives the same archs.
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
