"""The search for the starts of a cyclic pattern; `raynas.nets.cyclic` says what is sought.

One sweep places width after width, the narrowest first since their 1/j is the largest. It drops a pattern that cannot
become as good as the best one known, and of the others it keeps the most promising ones, up to a limit. With no limit
that is a proof (branch and bound, breadth first), with a low one a quick search (a beam). A few widening sweeps prove
all that can be proven in seconds: each hands the next a better pattern to drop others by.

Everything is counted in integers, with 1/j in units of a common denominator, and every order is a stable sort: all
machines find the same pattern. Where no pattern is proven best, 1/j is rounded to units that are not as small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

PROVEN_GROUPS = 21
"""Up to here a sweep without a limit takes no more than seconds."""

ROUNDED_UNIT = 2**26
"""Like the exact units (2.3e8 at the most), small enough that sums of squares over the groups fit 64 bits."""

NEWTON_STEPS = 2


@dataclass(frozen=True)
class _Problem:
    """What is fixed for l groups. An influence is counted in units, less its mean, so that 0 is perfect.

    Attributes:
        unit: an influence of 1.
        weights: [l + 1] int64, 1/j at index j, to the nearest unit.
        total: the sum of all influences: 0, but for rounding.
        fewest, most: how many widths below l may use a group of a balanced pattern (ViTAS v2, Eq. 12).
    """

    groups: int
    unit: int
    weights: np.ndarray
    total: int
    fewest: int
    most: int


@dataclass(frozen=True)
class _Nodes:
    """Patterns of the narrowest widths, and of width l, which uses all groups.

    Attributes:
        starts: [nodes, widths] int8.
        influence: [groups, nodes] int64.
        count: [groups, nodes] int64, how many widths below l use a group.
        bound: [nodes] int64, ascending; the gap of no balanced pattern that goes on from here is less.
        level: [nodes] int64, see `_least_squares`.
    """

    starts: np.ndarray
    influence: np.ndarray
    count: np.ndarray
    bound: np.ndarray
    level: np.ndarray


def solve(groups: int) -> tuple[tuple[int, ...], Fraction]:
    """The starts of a cyclic pattern, and what the gap of no balanced pattern is less than.

    The starts are the first, in lexicographic order, of the best patterns that the last sweep kept.
    """
    problem = _problem(groups)
    best = 2**62
    # Beyond proof a sweep's work grows as groups^3 * limit: two to four seconds. With any number of groups up to 48 it
    # ends with a pattern; a much lower limit may leave only patterns that cannot be balanced.
    for limit in (2**8, 2**12, 2**62) if groups <= PROVEN_GROUPS else (2**26 // groups**3,):
        nodes, dropped = _sweep(problem, best, limit)
        if nodes.bound.size:
            best = int(nodes.bound[0])
        if dropped > best:  # otherwise a better pattern, or one as good, may have gone with what was dropped
            break
    starts = min(nodes.starts[nodes.bound == best].tolist())
    return (*starts, 0), _proven(problem, min(best, dropped))


def _problem(groups: int) -> _Problem:
    unit = math.lcm(*range(1, groups + 1)) if groups <= PROVEN_GROUPS else ROUNDED_UNIT
    weights = np.array([0] + [(2 * unit + width) // (2 * width) for width in range(1, groups + 1)], dtype=np.int64)
    total = int(weights @ np.arange(groups + 1)) - groups * unit
    return _Problem(groups, unit, weights, total, (groups - 1) // 2, groups // 2)


def _proven(problem: _Problem, bound: int) -> Fraction:
    """A bound in square units as a bound on the gap.

    At most l / 2 + 1 widths use a group, each rounded by half a unit at most. So the vector of all influences is wrong
    by no more than sqrt(l) (l + 2) / 4 units, and neither is its length, which is the square root of the gap.
    """
    if problem.groups <= PROVEN_GROUPS:
        return Fraction(bound, problem.unit**2)
    wrong = math.ceil(math.sqrt(problem.groups) * (problem.groups + 2) / 4)
    return Fraction(max(math.isqrt(bound) - wrong, 0) ** 2, problem.unit**2)


def _sweep(problem: _Problem, best: int, limit: int) -> tuple[_Nodes, int]:
    """All balanced patterns with a gap up to `best`, best first, from at most `limit` patterns of each width.

    Returns:
        The patterns, and what no pattern is less than that was dropped because of the limit.
    """
    groups, weights = problem.groups, problem.weights
    influence = np.full((groups, 1), weights[groups] - problem.unit)
    nodes = _Nodes(np.zeros((1, 0), np.int8), influence, np.zeros_like(influence), np.zeros(1, int), np.zeros(1, int))
    dropped = 2**62
    block = 2**17 // groups**2  # nodes whose children are looked at together, few enough for a processor's cache
    places = np.arange(groups)
    for width in range(1, groups):
        # Turned patterns are alike, and so are mirrored ones, of which width 2 starts at s_2 and at l - 1 - s_2.
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
    """What a block of nodes becomes by one width more, without what is not balanced or bounded above `best`.

    Args:
        uses: [groups, starts] int64, 1 where `width` uses a group when it starts at 0, 1, ...

    Returns:
        [4, children] int64: the node that each comes from, the start of `width`, bound and level.
    """
    rest = problem.weights[width + 1 : problem.groups]
    count = nodes.count[:, block, None] + uses[:, None, :]
    balanced = (count <= problem.most) & (count >= problem.fewest - rest.size)
    parent, start = np.nonzero(balanced.all(0))
    parent += block.start
    count = nodes.count[:, parent] + uses[:, start]
    influence = nodes.influence[:, parent] + problem.weights[width] * uses[:, start]
    # A group that n more widths use gains at least the n smallest of the remaining 1/j, and at most the n largest.
    counts = np.arange(problem.most + 1)
    smallest, largest = np.append(0, np.cumsum(rest[::-1])), np.append(0, np.cumsum(rest))
    least = smallest[np.clip(problem.fewest - counts, 0, rest.size)]
    greatest = largest[np.minimum(problem.most - counts, rest.size)]
    bound, level = _least_squares(problem, influence + least[count], influence + greatest[count], nodes.level[parent])
    # The counts step up and down between neighbours; each remaining width can level one step up and one step down.
    steps = np.maximum(np.abs(count - np.roll(count, 1, axis=0)) - (problem.most - problem.fewest), 0).sum(0)
    return np.stack([parent, start, bound, level])[:, (bound <= best) & (steps <= 2 * rest.size)]


def _least_squares(
    problem: _Problem, low: np.ndarray, high: np.ndarray, level: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A lower bound on the sum of y^2 over the groups, for low <= y <= high whose sum is that of all influences.

    By weak duality any level m gives one: the sum over the groups of the least y^2 - 2 m y, which is at m or at the
    limit next to it, and 2 m times the sum that the y should have. The bound is greatest at the level where these y do
    have that sum. Newton's steps from the parent's level come near it; how near does not matter to the proof.

    Args:
        low, high: [groups, nodes] int64.
        level: [nodes] int64, the parents'.

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
        level = np.clip(level, -problem.unit // 4, problem.unit // 4)  # further off, products would not fit 64 bits
    return bound, level
