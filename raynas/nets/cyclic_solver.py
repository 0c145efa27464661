"""The search for a cyclic pattern's starts: see `raynas.nets.cyclic` for what is sought.

Everything is counted in integers, 1/j in units of a common denominator, and every order is a stable sort, so that all
machines find the same pattern. Up to 22 groups the denominator is exact and so is the search; beyond, 1/j is rounded,
and the bound gives way by the most that rounding can do.

Up to 20 groups a sweep over all patterns, width by width, leaves out what is proven to be worse than the best one
known. Beyond, a narrow search over complementary pairs of widths finds a good pattern, exchanges of two widths' starts
better it, and a sweep as wide as time allows proves how much better another could be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

LARGEST_UNIT = 2**28
"""Squares of influences, summed over the groups, stay below 2^63 with it."""


@dataclass(frozen=True)
class _Problem:
    """What all steps need to know of l groups. An influence counts in units, less its mean: 0 is perfect.

    Attributes:
        unit: an influence of 1.
        exact: whether 1/j is a whole number of units, for every j.
        weights: [l + 1] int64, 1/j at index j, to the nearest unit.
        total: the sum of all influences: 0, but for rounding.
        fewest, most: how many widths below l may use a group, of balanced patterns (ViTAS v2, Eq. 12).
    """

    groups: int
    unit: int
    exact: bool
    weights: np.ndarray
    total: int
    fewest: int
    most: int

    def uses(self, width: int, starts: int) -> np.ndarray:
        """[groups, starts] int64, 1 where `width` uses a group when it starts at 0, 1, .. `starts` - 1."""
        places = np.arange(self.groups)[:, None] - np.arange(starts)
        return (places % self.groups < width).astype(np.int64)


@dataclass(frozen=True)
class _Nodes:
    """Patterns of the narrowest widths and of width l, which uses all groups.

    Attributes:
        starts: [nodes, widths] int8.
        influence: [groups, nodes] int64.
        count: [groups, nodes] int64, how many widths below l use a group.
        bound: [nodes] int64, ascending: no way to go on gives less.
    """

    starts: np.ndarray
    influence: np.ndarray
    count: np.ndarray
    bound: np.ndarray


def solve(groups: int) -> tuple[tuple[int, ...], Fraction]:
    """The starts of a cyclic pattern, and what no balanced pattern's gap is less than."""
    problem = _problem(groups)
    if groups > EXACT_GROUPS:
        starts = _exchanged(problem, _complementary(problem))
        best = int((_sums(problem, starts)[0] ** 2).sum())
        _, left_out = _sweep(problem, best, SWEPT // groups**2)
        return tuple(starts), _proven(problem, min(best, left_out))
    best = 2**62
    for limit in (2**8, 2**12, 2**62):
        nodes, left_out = _sweep(problem, best, limit)
        if nodes.bound.size:
            best = int(nodes.bound[0])
        if left_out > best:  # else a pattern as good, or better, may be among them
            break
    equals = nodes.starts[nodes.bound == best].tolist()
    return (*min(map(tuple, equals)), 0), _proven(problem, best)


EXACT_GROUPS = 20
SWEPT = 2**21
"""Groups squared times patterns of each width in the sweep beyond: about ten seconds."""


def _proven(problem: _Problem, bound: int) -> Fraction:
    """A bound in units as a bound on the gap.

    A group is used by at most l / 2 + 1 widths, each rounded by half a unit at most. So the vector of influences is
    wrong by at most sqrt(l) (l + 2) / 4 units, and its length, the square root of the gap, by no more.
    """
    if problem.exact:
        return Fraction(bound, problem.unit**2)
    wrong = math.ceil(math.sqrt(problem.groups) * (problem.groups + 2) / 4)
    return Fraction(max(math.isqrt(bound) - wrong, 0) ** 2, problem.unit**2)


def _problem(groups: int) -> _Problem:
    unit = math.lcm(*range(1, groups + 1))
    exact = unit <= LARGEST_UNIT
    if not exact:
        unit = LARGEST_UNIT // 4
    weights = np.array([0] + [(2 * unit + j) // (2 * j) for j in range(1, groups + 1)], dtype=np.int64)
    total = int(weights @ np.arange(groups + 1)) - groups * unit
    return _Problem(groups, unit, exact, weights, total, (groups - 1) // 2, groups // 2)


def _complementary(problem: _Problem, limit: int = 100) -> list[int]:
    """A balanced pattern in which width l - j starts where width j ends, for every j below l / 2.

    Two such widths use every group once. So all of these patterns are balanced, and what is left to choose is where
    half of the widths start, each with 1/j - 1/(l - j) for its weight. Done like the sweep.
    """
    groups, weights = problem.groups, problem.weights
    half = range(1, groups // 2 + 1)
    other = np.array([0] + [weights[groups - j] if 2 * j < groups else 0 for j in half])
    gains = weights[: len(half) + 1] - other
    starts = np.zeros((1, 0), np.int64)
    influence = np.full((groups, 1), weights[groups] - problem.unit + other.sum())
    for width in half:
        uses = problem.uses(width, groups if width > 1 else 1)
        children = (influence[:, :, None] + gains[width] * uses[:, None, :]).reshape(groups, -1)
        bound = _least_squares(children, children + gains[width + 1 :].sum(), problem)
        order = np.argsort(bound, kind="stable")[:limit]
        parent, start = np.divmod(order, uses.shape[1])
        starts, influence = np.concatenate([starts[parent], start[:, None]], axis=1), children[:, order]
    pattern = [0] * groups
    for width, start in zip(half, starts[0].tolist(), strict=True):
        pattern[width - 1] = start
        if 2 * width < groups:
            pattern[groups - width - 1] = (start + width) % groups
    return pattern


def _exchanged(problem: _Problem, starts: list[int]) -> list[int]:
    """A balanced pattern that other starts of any two widths do not better; width 1 stays where it is."""
    groups, weights = problem.groups, problem.weights
    starts = list(starts)
    width, start = np.divmod(np.arange(2 * groups, groups**2), groups)  # a move gives a width a start
    uses = np.concatenate([problem.uses(j, groups) for j in range(2, groups)], axis=1)
    weight = weights[width]
    while True:
        current = np.array(starts)[width - 1]
        moved = uses - uses[:, (width - 2) * groups + current]
        influence, count = _sums(problem, starts)
        alone = weight * (2 * influence @ moved + weight * (moved**2).sum(0))
        shared = (moved.T.astype(float) @ moved).astype(np.int64)  # exact; integers would not be multiplied as fast
        change = alone[:, None] + alone + 2 * weight[:, None] * weight * shared
        one, two = np.nonzero((change < 0) & (width[:, None] < width))
        order = np.argsort(change[one, two], kind="stable")
        for first in range(0, order.size, 2**14):
            some = order[first : first + 2**14]
            counts = count[:, None] + moved[:, one[some]] + moved[:, two[some]]
            balanced = np.flatnonzero(((counts >= problem.fewest) & (counts <= problem.most)).all(0))
            if balanced.size:
                for move in (one[some[balanced[0]]], two[some[balanced[0]]]):
                    starts[width[move] - 1] = int(start[move])
                break
        else:
            return starts


def _sums(problem: _Problem, starts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Each group's influence, and by how many widths below l it is used, [groups] int64 each."""
    groups = problem.groups
    places = (np.arange(groups)[:, None] - np.array(starts[:-1])) % groups
    uses = (places < np.arange(1, groups)).astype(np.int64)
    return uses @ problem.weights[1:groups] + problem.weights[groups] - problem.unit, uses.sum(1)


def _sweep(problem: _Problem, best: int, limit: int) -> tuple[_Nodes, int]:
    """All patterns that may be as good as `best`, width by width, but at most `limit` of each width: the most promising.

    Returns:
        The whole patterns, and what no pattern that was left out for want of room is less than.
    """
    groups, weights = problem.groups, problem.weights
    influence = np.full((groups, 1), weights[groups] - problem.unit)
    nodes = _Nodes(np.zeros((1, 0), np.int8), influence, np.zeros_like(influence), (influence**2).sum(0))
    left_out = 2**62
    for width in range(1, groups):
        # All turns of a pattern are alike, and so is its mirror image, in which width 2 starts at l - 1 - s_2.
        starts = {1: 1, 2: (groups + 1) // 2}.get(width, groups)
        uses = problem.uses(width, starts)
        found = [_extended(problem, nodes, uses, width, first, best) for first in range(0, nodes.bound.size, BLOCK)]
        child, value = np.concatenate(found, axis=1)
        order = np.argsort(value, kind="stable")
        if order.size > limit:
            left_out = min(left_out, int(value[order[limit]]))
            order = order[:limit]
        parent, start = np.divmod(child[order], starts)
        nodes = _Nodes(
            np.concatenate([nodes.starts[parent], start[:, None].astype(np.int8)], axis=1),
            nodes.influence[:, parent] + weights[width] * uses[:, start],
            nodes.count[:, parent] + uses[:, start],
            value[order],
        )
    return nodes, left_out


BLOCK = 256
"""Patterns that are extended together: their children's arrays stay within a processor's cache."""


def _extended(problem: _Problem, nodes: _Nodes, uses: np.ndarray, width: int, first: int, best: int) -> np.ndarray:
    """Which children of a block of nodes may be as good as `best`: [2, children], index and bound.

    Child `node * starts + start` adds `width` at a start.
    """
    groups, starts = uses.shape
    block = slice(first, first + BLOCK)
    rest = problem.weights[width + 1 : groups]
    count = (nodes.count[:, block, None] + uses[:, None, :]).reshape(groups, -1)
    balanced = (count <= problem.most) & (count >= problem.fewest - rest.size)
    which = np.flatnonzero(balanced.all(0))
    count = count[:, which]
    influence = (nodes.influence[:, block, None] + problem.weights[width] * uses[:, None, :]).reshape(groups, -1)
    influence = influence[:, which]
    # A group that n more widths use gains no less than the n smallest of the remaining 1/j, and no more than the n
    # largest.
    counts = np.arange(problem.most + 1)
    smallest, largest = np.append(0, np.cumsum(rest[::-1])), np.append(0, np.cumsum(rest))
    least = smallest[np.clip(problem.fewest - counts, 0, rest.size)]
    greatest = largest[np.minimum(problem.most - counts, rest.size)]
    bound = _least_squares(influence + least[count], influence + greatest[count], problem)
    good = bound <= best
    return np.stack([which[good] + first * starts, bound[good]])


def _least_squares(low: np.ndarray, high: np.ndarray, problem: _Problem, steps: int = 4) -> np.ndarray:
    """A lower bound on the sum of y_i^2 over the groups, for low <= y <= high with the sum that all influences have.

    By weak duality any level m gives one: the least of y_i^2 - 2 m y_i, which is at m or at the limit next to it, summed
    over the groups, and 2 m times the total. The best level is the one at which these y_i have the right sum; Newton's
    steps come near it, and since every step's bound holds, it does not matter how near.

    Args:
        low, high: [groups, nodes] int64.
    """
    level = np.zeros(low.shape[1], np.int64)
    bound = np.zeros_like(level)
    for _ in range(steps):
        y = np.minimum(np.maximum(low, level), high)
        excess = y.sum(0) - problem.total
        bound = np.maximum(bound, (y * y).sum(0) - 2 * level * excess)
        free = ((low < level) & (level < high)).sum(0)
        level = level - excess // np.maximum(free, 1)
        level = np.clip(level, -problem.unit // 4, problem.unit // 4)  # far off, the products would not fit 64 bits
    return bound
