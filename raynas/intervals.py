"""Means with intervals, for results over several seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

FEW = {count: float(stats.t.ppf(0.975, count - 1)) for count in (2, 3)}
"""How many standard errors a 95 % interval over so few values is wide, to either side."""


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float | None]:
    """The mean, and the half-width of its Student t interval; None for a single value, which has none.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to average")
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, None
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return mean, float(stats.t.ppf((1 + confidence) / 2, len(values) - 1) * error)
