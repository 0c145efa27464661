"""Means with intervals, for results over several seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

FEW = {count: float(stats.t.ppf(0.975, count - 1)) for count in (2, 3)}
"""Half the width of a 95 % interval over few values, in standard errors."""


def mean_interval(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and half the width of its 95 % Student t interval, None for a single value.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values to average")
    mean = float(np.mean(values))
    if len(values) == 1:
        return mean, None
    error = float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return mean, float(stats.t.ppf(0.975, len(values) - 1) * error)
