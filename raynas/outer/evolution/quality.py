"""How good a space is: its E-T error (S3, Section 3.2), with the standard error of the sample that it comes from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

RESAMPLES = 400
"""Bootstrap resamples: the standard error of a standard error from so many is a twenty-eighth of it."""


@dataclass(frozen=True)
class SpaceQuality:
    """What a sample of archs says of its (sub-)space. Errors are top-1 errors between 0 and 1.

    Attributes:
        archs: how many are in it.
        mean: their mean error.
        top: the mean error of the best of them, the top tier.
        error: the E-T error, the mean of both.
        standard_error: of the E-T error, by the bootstrap over archs; NaN where there are too few.
    """

    archs: int
    mean: float
    top: float
    error: float
    standard_error: float


def resamples(rng: np.random.Generator, n: int, draws: int = RESAMPLES) -> np.ndarray:
    """How often each of n archs is in each sample, [1 + draws, n]: once in the first, as drawn in the others."""
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=draws)
    return np.concatenate([np.ones((1, n), dtype=drawn.dtype), drawn])


def et_errors(errors: np.ndarray, times: np.ndarray, top: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean error, mean error of the top tier, and their mean, of several samples of the same archs.

    Args:
        errors: of each arch, [n].
        times: how often each arch is in each sample, [samples, n].
        top: the size of the top tier; see `SpaceEvolutionConfig`.

    Returns:
        [samples] each; NaN for a sample without archs.
    """
    order = np.argsort(errors, kind="stable")
    errors, times = errors[order], times[:, order]
    size = times.sum(axis=1)
    # Shares are rounded up; a product such as 0.07 * 100 must not be one more for being a little above 7.
    tier = np.minimum(size, top) if top >= 1 else np.ceil(size * top - 1e-9)
    before = np.cumsum(times, axis=1) - times
    within = np.clip(tier[:, None] - before, 0, times)
    with np.errstate(invalid="ignore"):
        mean, best = times @ errors / size, within @ errors / tier
    return mean, best, (mean + best) / 2


def space_quality(errors: np.ndarray, times: np.ndarray, top: float) -> tuple[SpaceQuality, np.ndarray]:
    """The quality of a (sub-)space, and its E-T error in every resample [draws].

    Args:
        errors: of its archs, [n].
        times: their part of `resamples`, [1 + draws, n].
        top: the size of the top tier.
    """
    mean, best, error = et_errors(errors, times, top)
    drawn = error[1:]
    known = drawn[~np.isnan(drawn)]
    spread = float(known.std(ddof=1)) if len(errors) > 1 and len(known) > 1 else math.nan
    return SpaceQuality(len(errors), float(mean[0]), float(best[0]), float(error[0]), spread), drawn
