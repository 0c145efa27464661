"""Counting, enumeration and exactly uniform draws over a tree of dimensions.

Counts are Python integers: published spaces hold up to 1e43 archs, beyond numpy's 64 bits.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import accumulate

import numpy as np

from raynas.space.dimension import Choice, Dimension


def count_below(dimensions: Sequence[Dimension]) -> list[list[int]]:
    """Return, for each choice of each dimension, the number of ways to choose all its descendants."""
    index = {dimension.name: i for i, dimension in enumerate(dimensions)}
    counts = [[1] * len(dimension.choices) for dimension in dimensions]
    for i in reversed(range(len(dimensions))):  # children follow their parents
        dimension = dimensions[i]
        if dimension.parent is not None:
            parent, ways = index[dimension.parent], sum(counts[i])
            for j, choice in enumerate(dimensions[parent].choices):
                if choice in dimension.when:
                    counts[parent][j] *= ways
    return counts


def count_all(dimensions: Sequence[Dimension], below: list[list[int]]) -> int:
    """Return the number of archs, from `count_below`."""
    return math.prod(sum(ways) for dimension, ways in zip(dimensions, below, strict=True) if dimension.parent is None)


def shown_count(number: int) -> str:
    """Format a number of archs: `1,234` or `1.30e43`, also beyond the range of a float (1e308)."""
    return f"{number:,}" if number < 10**12 else f"{Decimal(number):.2e}".replace("e+", "e")


def every_code(dimensions: Sequence[Dimension]) -> Iterator[np.ndarray]:
    """Yield the codes of every arch once, int16 [dimensions], in the order of choices, the first dimension slowest."""
    chosen: dict[str, Choice] = {}
    codes = np.full(len(dimensions), -1, dtype=np.int16)  # INACTIVE

    def choose(i: int) -> Iterator[np.ndarray]:
        if i == len(dimensions):
            yield codes.copy()
        elif not dimensions[i].acts_under(chosen):
            yield from choose(i + 1)
        else:
            for code, choice in enumerate(dimensions[i].choices):
                codes[i], chosen[dimensions[i].name] = code, choice
                yield from choose(i + 1)
            codes[i] = -1
            del chosen[dimensions[i].name]

    return choose(0)


def draw_weighted(rng: np.random.Generator, weights: Sequence[int], n: int) -> np.ndarray:
    """Draw n indices [n] with probabilities exactly proportional to integer weights of any size."""
    bounds = list(accumulate(weights))
    total = bounds[-1]
    if total < 2**63:
        return np.searchsorted(np.array(bounds), rng.integers(total, size=n), side="right")
    size = (total.bit_length() + 7) // 8
    excess = size * 8 - total.bit_length()
    drawn: list[int] = []
    while len(drawn) < n:  # rejection: fewer than two tries a draw on average
        number = int.from_bytes(rng.bytes(size), "little") >> excess
        if number < total:
            drawn.append(bisect_right(bounds, number))
    return np.array(drawn)
