"""Rank and linear correlations of two lists, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

RESAMPLES = 1000
FEWEST = 4  # pairs for a meaningful interval


def pearson(x: np.ndarray, y: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of each resample, [draws], for indices [draws, n] into x and y [n]."""
    x, y = x[draws], y[draws]
    x, y = (each - each.mean(axis=1, keepdims=True) for each in (x, y))
    return (x * y).sum(axis=1) / np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))


def spearman(x: np.ndarray, y: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of each resample: Pearson's of its ranks, with ties at their mean."""
    from scipy import stats  # slow import

    x, y = (stats.rankdata(each[draws], axis=1).ravel() for each in (x, y))
    return pearson(x, y, np.arange(draws.size).reshape(draws.shape))


def kendall(x: np.ndarray, y: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-b of each resample.

    With counts w of the points in a resample, a pair occurs as often as the product of its points' counts. So the
    number of concordant minus discordant pairs is w' S w, where S has the products of the signs of their differences.
    """
    n = len(x)
    counts = np.stack([np.bincount(draw, minlength=n) for draw in draws]).astype(np.float32)
    agree, differ_x, differ_y = np.zeros((3, len(draws)))
    for start in range(0, n, 1000):  # rows of the matrices at a time
        rows = slice(start, start + 1000)
        signs = [np.sign(each[rows, None] - each).astype(np.float32) for each in (x, y)]
        mine = counts[:, rows]
        agree += (mine @ (signs[0] * signs[1]) * counts).sum(axis=1, dtype=np.float64)
        differ_x += (mine @ np.abs(signs[0]) * counts).sum(axis=1, dtype=np.float64)
        differ_y += (mine @ np.abs(signs[1]) * counts).sum(axis=1, dtype=np.float64)
    return agree / np.sqrt(differ_x * differ_y)


STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]] = {
    "pearson": pearson,
    "spearman": spearman,
    "kendall": kendall,
}


def correlations(x: Sequence[float], y: Sequence[float], rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return Pearson, Spearman and Kendall (tau-b) of two lists, each with its 95 % bootstrap interval.

    A value is None if there are too few pairs or one of the lists is constant. Pairs with NaN or an infinite value, as
    training-free scores may be, are left out, and `networks` counts the others.
    """
    both = np.array([x, y], dtype=float)
    first, second = both[:, np.isfinite(both).all(axis=0)]
    pairs, n = (first, second), len(first)
    rows: list[dict[str, Any]] = [
        {"statistic": name, "value": None, "lower": None, "upper": None} for name in STATISTICS
    ]
    if n >= FEWEST and all(len(np.unique(each)) > 1 for each in pairs):
        draws = rng.integers(n, size=(RESAMPLES, n))
        varies = np.all([np.ptp(each[draws], axis=1) > 0 for each in pairs], axis=0)
        draws = np.concatenate([np.arange(n)[None], draws[varies]])
        for row in rows:
            value, *resampled = STATISTICS[row["statistic"]](*pairs, draws)
            low, high = np.percentile(resampled, [2.5, 97.5])
            row.update(value=float(value), lower=float(low), upper=float(high))
    return [{**row, "networks": n} for row in rows]
