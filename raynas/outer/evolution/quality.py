"""Quality of a space: its E-T error (S3, Section 3.2), with the standard error from the sample of archs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 400
"""Number of bootstrap resamples; a standard error estimated from them has a relative error of 1/28."""


@dataclass(frozen=True)
class SpaceQuality:
    """Quality of a (sub-)space, estimated from a sample of archs; errors are top-1 errors between 0 and 1.

    Attributes:
        top: mean error of the top tier (the best archs).
        error: E-T error, the mean of both.
        standard_error: standard error of the E-T error, by the bootstrap over archs; NaN if there are too few.
    """

    archs: int
    mean: float
    top: float
    error: float
    standard_error: float


def resamples(rng: np.random.Generator, n: int, draws: int = RESAMPLES) -> np.ndarray:
    """Return the counts of n archs in the sample itself (ones) and in bootstrap resamples, int [1 + draws, n]."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return np.concatenate([np.ones((1, n), dtype=drawn.dtype), drawn])


def et_errors(errors: np.ndarray, times: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean error, mean error of the top tier, and their mean, for several samples of the same archs.

    Args:
        errors: error of each arch, [n].
        times: counts of each arch in each sample, [samples, n].

    Returns:
        [samples] each; NaN for a sample without archs.
    """
    order = np.argsort(errors, kind="stable")
    errors, times = errors[order], times[:, order]
    size = times.sum(axis=1)
    # Shares are rounded up, but not because of rounding errors: 0.07 * 100 is slightly above 7.
    tier = np.minimum(size, top) if top >= 1 else np.ceil(size * top - 1e-9)
    before = np.cumsum(times, axis=1) - times
    within = np.clip(tier[:, None] - before, 0, times)
    with np.errstate(invalid="ignore"):
        mean, best = times @ errors / size, within @ errors / tier
    return mean, best, (mean + best) / 2


def space_quality(errors: np.ndarray, times: np.ndarray, top: float) -> tuple[SpaceQuality, np.ndarray]:
    """Return the quality of a (sub-)space, and its E-T error in every resample, [draws].

    Args:
        errors: errors of its archs, [n].
        times: their columns of `resamples`, [1 + draws, n].
    """
    mean, best, error = et_errors(errors, times, top)
    drawn = error[1:]
    known = drawn[~np.isnan(drawn)]
    spread = float(known.std(ddof=1)) if len(errors) > 1 and len(known) > 1 else math.nan
    return SpaceQuality(len(errors), float(mean[0]), float(best[0]), float(error[0]), spread), drawn
