"""Comparison of results: the best first, the front of two, and means over seeds with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def best_first(
    scores: Sequence[float], costs: Sequence[Sequence[float]] = (), losses: Sequence[float | None] = ()
) -> list[int]:
    """Return the indices of results, the best first; everything that is chosen is chosen by this rule.

    Ties go to the lower cost, then to the lower loss, then to the first.

    Args:
        scores: the value of each result; smaller is better.
        costs: for each kind of cost, the most important first, the cost of each result; smaller is better.
        losses: the loss of each result; an unknown one (None) comes last. Empty if none is known.
    """
    known = [math.inf if loss is None else loss for loss in losses]
    keys = [np.asarray(each, dtype=np.float64) for each in (scores, *costs, *([known] if known else []))]
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order


def pareto(costs: np.ndarray, accuracy: np.ndarray, higher_is_better: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return the Pareto front of lower cost (or higher, if that is better) and higher accuracy, the cheapest first."""
    order = np.lexsort((-accuracy, -costs if higher_is_better else costs))
    best = np.maximum.accumulate(accuracy[order]) if len(order) else accuracy
    keep = np.r_[True, best[1:] > best[:-1]] if len(order) else np.zeros(0, bool)
    return costs[order][keep], accuracy[order][keep]


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of its 95 % Student t interval; None for a single value.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to average")
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, None
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return mean, float(half_width(len(values)) * error)


def half_width(count: int) -> float:
    """Return half the width of a 95 % Student t interval of the mean of `count` values, in standard errors."""
    from scipy import stats  # slow import

    return float(stats.t.ppf(0.975, count - 1))


def seeds_to_decide(differences: Sequence[float], most: int = 1000) -> int | None:
    """Return how many seeds could decide whether the mean of paired differences is above or below 0.

    That is the smallest number of differences whose 95 % t interval would leave 0 out, if their mean and their standard
    deviation stayed as they are.

    Args:
        differences: differences of pairs with the same seed, at least two.
        most: the largest number that is tried.

    Returns:
        The number, at least 2; None if the mean is 0 or more than `most` would be needed.
    """
    from scipy import stats  # slow import

    mean, deviation = abs(float(np.mean(differences))), float(np.std(differences, ddof=1))
    counts = np.arange(2, most + 1)
    half = stats.t.ppf(0.975, counts - 1) * deviation / np.sqrt(counts)
    enough = counts[half < mean]
    return int(enough[0]) if len(enough) else None
