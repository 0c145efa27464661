"""Search for the starts of a cyclic pattern, as defined in `raynas.nets.cyclic`.

A sweep places one width after another, the narrowest first since its 1/j is largest. It drops patterns that cannot
become as good as the best known, and keeps the most promising others up to a limit. Without a limit this is a proof
(breadth-first branch and bound); with a low limit, a beam search. A few sweeps of growing limit prove all that can be
proven in seconds, since each gives the next a better pattern to prune with.

All counts are integers, with 1/j in units of a common denominator, and all sorts are stable, so every machine finds the
same pattern. Beyond the proven sizes, 1/j is rounded to coarser units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

PROVEN_GROUPS = 21
"""Up to this number of groups, a sweep without a limit takes seconds."""

ROUNDED_UNIT = 2**26
"""Small enough that sums of squares over the groups fit 64 bits, like the exact units (2.3e8 at most)."""

NEWTON_STEPS = 2


@dataclass(frozen=True)
class _Problem:
    """Constants for l groups; influences are counted in units, minus their mean, so that 0 is perfect.

    Attributes:
        unit: an influence of 1.
        weights: [l + 1] int64, 1/j at index j, to the nearest unit.
        total: the sum of all influences: 0, except for rounding.
        fewest, most: bounds on the number of widths below l that use a group, if balanced (ViTAS v2, Eq. 12).
    """

    groups: int
    unit: int
    weights: np.ndarray
    total: int
    fewest: int
    most: int


@dataclass(frozen=True)
class _Nodes:
    """Partial patterns: the narrowest widths, and width l, which uses all groups.

    Attributes:
        starts: [nodes, widths] int8.
        influence: [groups, nodes] int64.
        count: [groups, nodes] int64, the number of widths below l that use a group.
        bound: [nodes] int64, ascending; a lower bound on the gap of balanced patterns that continue this one.
        level: [nodes] int64, see `_least_squares`.
    """

    starts: np.ndarray
    influence: np.ndarray
    count: np.ndarray
    bound: np.ndarray
    level: np.ndarray


def solve(groups: int) -> tuple[tuple[int, ...], Fraction]:
    """Return the starts of a cyclic pattern, and a lower bound on the gap of balanced patterns.

    The starts are the first, in lexicographic order, of the best patterns that the last sweep kept.
    """
    problem = _problem(groups)
    best = 2**62
    # Without a proof, a sweep's work grows as groups^3 * limit: two to four seconds. It finds a pattern for any number
    # of groups up to 48; a much lower limit may leave only patterns that cannot be balanced.
    for limit in (2**8, 2**12, 2**62) if groups <= PROVEN_GROUPS else (2**26 // groups**3,):
        nodes, dropped = _sweep(problem, best, limit)
        if nodes.bound.size:
            best = int(nodes.bound[0])
        if dropped > best:  # else a dropped pattern may be as good or better
            break
    starts = min(nodes.starts[nodes.bound == best].tolist())
    return (*starts, 0), _proven(problem, min(best, dropped))


def _problem(groups: int) -> _Problem:
    unit = math.lcm(*range(1, groups + 1)) if groups <= PROVEN_GROUPS else ROUNDED_UNIT
    weights = np.array([0] + [(2 * unit + width) // (2 * width) for width in range(1, groups + 1)], dtype=np.int64)
    total = int(weights @ np.arange(groups + 1)) - groups * unit
    return _Problem(groups, unit, weights, total, (groups - 1) // 2, groups // 2)


def _proven(problem: _Problem, bound: int) -> Fraction:
    """Convert a bound in square units to a bound on the gap.

    At most l / 2 + 1 widths use a group, each rounded by at most half a unit. So the error of the vector of influences
    is at most sqrt(l) (l + 2) / 4 units, and so is the error of its length, the square root of the gap.
    """
    if problem.groups <= PROVEN_GROUPS:
        return Fraction(bound, problem.unit**2)
    wrong = math.ceil(math.sqrt(problem.groups) * (problem.groups + 2) / 4)
    return Fraction(max(math.isqrt(bound) - wrong, 0) ** 2, problem.unit**2)


def _sweep(problem: _Problem, best: int, limit: int) -> tuple[_Nodes, int]:
    """Find balanced patterns with a gap up to `best`, best first, keeping at most `limit` patterns for each width.

    Returns:
        The patterns, and a lower bound on those dropped because of the limit.
    """
    groups, weights = problem.groups, problem.weights
    influence = np.full((groups, 1), weights[groups] - problem.unit)
    nodes = _Nodes(np.zeros((1, 0), np.int8), influence, np.zeros_like(influence), np.zeros(1, int), np.zeros(1, int))
    dropped = 2**62
    block = 2**17 // groups**2  # nodes expanded together, few enough for the CPU cache
    places = np.arange(groups)
    for width in range(1, groups):
        # Rotated patterns are equivalent; so are mirrored ones, whose width 2 starts at l - 1 - s_2 instead of s_2.
        starts = {1: 1, 2: (groups + 1) // 2}.get(width, groups)
        uses = ((places[:, None] - places[:starts]) % groups < width).astype(np.int64)
        blocks = [slice(first, first + block) for first in range(0, max(nodes.bound.size, 1), block)]
        children = [_children(problem, nodes, each, width, uses, best) for each in blocks]
        parent, start, bound, level = np.concatenate(children, axis=1)
        order = np.argsort(bound, kind="stable")
        if order.size > limit:
            dropped = min(dropped, int(bound[order[limit]]))
            order = order[:limit]
        parent, start = parent[order], start[order]
        nodes = _Nodes(
            np.concatenate([nodes.starts[parent], start[:, None].astype(np.int8)], axis=1),
            nodes.influence[:, parent] + weights[width] * uses[:, start],
            nodes.count[:, parent] + uses[:, start],
            bound[order],
            level[order],
        )
    return nodes, dropped


def _children(problem: _Problem, nodes: _Nodes, block: slice, width: int, uses: np.ndarray, best: int) -> np.ndarray:
    """Extend a block of nodes by one width, dropping children that are not balanced or bounded above `best`.

    Args:
        uses: [groups, starts] int64, 1 where `width` uses a group when it starts at 0, 1, ...

    Returns:
        [4, children] int64: parent node, start of `width`, bound and level.
    """
    rest = problem.weights[width + 1 : problem.groups]
    count = nodes.count[:, block, None] + uses[:, None, :]
    balanced = (count <= problem.most) & (count >= problem.fewest - rest.size)
    parent, start = np.nonzero(balanced.all(0))
    parent += block.start
    count = nodes.count[:, parent] + uses[:, start]
    influence = nodes.influence[:, parent] + problem.weights[width] * uses[:, start]
    # A group used by n more widths gains at least the n smallest of the remaining 1/j, and at most the n largest.
    counts = np.arange(problem.most + 1)
    smallest, largest = np.append(0, np.cumsum(rest[::-1])), np.append(0, np.cumsum(rest))
    least = smallest[np.clip(problem.fewest - counts, 0, rest.size)]
    greatest = largest[np.minimum(problem.most - counts, rest.size)]
    bound, level = _least_squares(problem, influence + least[count], influence + greatest[count], nodes.level[parent])
    # Counts of neighbouring groups differ; each remaining width can level one step up and one step down.
    steps = np.maximum(np.abs(count - np.roll(count, 1, axis=0)) - (problem.most - problem.fewest), 0).sum(0)
    return np.stack([parent, start, bound, level])[:, (bound <= best) & (steps <= 2 * rest.size)]


def _least_squares(
    problem: _Problem, low: np.ndarray, high: np.ndarray, level: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return a lower bound on the sum of y^2 over the groups, for low <= y <= high with the sum of all influences.

    By weak duality any level m gives a bound: the sum over the groups of the least y^2 - 2 m y, which is at m or the
    nearest limit, plus 2 m times the required sum of y. The bound is greatest at the level where these y have that sum.
    Newton steps from the parent's level approach it; the proof holds for any level.

    Args:
        low, high: [groups, nodes] int64.
        level: [nodes] int64, the parents' levels.

    Returns:
        bound and level, [nodes] int64 each.
    """
    bound = np.zeros_like(level)
    for _ in range(NEWTON_STEPS):
        y = np.minimum(np.maximum(low, level), high)
        excess = y.sum(0) - problem.total
        bound = np.maximum(bound, (y * y).sum(0) - 2 * level * excess)
        free = (y == level).sum(0)
        level = level - excess // np.maximum(free, 1)
        level = np.clip(level, -problem.unit // 4, problem.unit // 4)  # keeps products within 64 bits
    return bound, level
