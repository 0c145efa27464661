"""Latency in between timings: a model of a few hundred timed archs of a space that says what the others take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls
from scipy.stats import spearmanr

from raynas.costs.latency import TimedOn
from raynas.costs.total import counted
from raynas.errors import UserError
from raynas.space import Codes, Space
from raynas.space.dimension import template_of

LEAST = 10
"""Fewer timings say nothing."""

FOLDS = 5
QUIET = 0.1
"""The quantile of the smallest arch's times that stands for the quiet device."""


@dataclass(frozen=True)
class HeldOut:
    """How timings are predicted by models that were fitted without them.

    Attributes:
        predicted: milliseconds [n].
        error: median absolute error, as a fraction of the measured time.
        rank: Spearman's rank correlation with the measured times.
    """

    predicted: np.ndarray
    error: float
    rank: float


class LatencyPredictor:
    """Milliseconds of a batch, as a function of codes; for the device and conditions of its timings alone.

    A subnet's time is a sum over the kinds of its parts (the attention of all blocks of a stage is one kind): so much
    for each multiply-accumulate, for each parameter, and for each part that acts. None of these is negative, so that a
    larger subnet never takes less; errors count relative to the time.

    Attributes:
        space: the space of the codes.
        on: what the timings hold for, and so the predictions.
        quiet_ms: what the space's smallest arch takes when the device is quiet; see `steady`.
        timings: number of archs that it learned from.
        held_out: its error on timings that it did not learn from, by five-fold cross-validation.
    """

    def __init__(self, space: Space, codes: Codes, ms: np.ndarray, on: TimedOn, ratio: np.ndarray | None = None):
        """Args:
            space: of the archs.
            codes: the timed archs [n, dimensions].
            ms: measured milliseconds [n].
            on: what they hold for.
            ratio: to what the space's smallest arch took in turns with each [n]; left out, the device is taken to have
                been the same for all.

        Raises:
            UserError: there are fewer than 10 timings.
        """
        if len(codes) < LEAST:
            raise UserError(f"a predictor of latency needs at least {LEAST} timed archs, not {len(codes)}")
        self.space = space
        self.on = on
        self.timings = len(codes)
        self.quiet_ms = None if ratio is None else float(np.quantile(ms / ratio, QUIET))
        if ratio is not None:
            ms = self.steady(ms, ratio)
        found = features(space, codes)
        self._weights = _fit(found, ms)
        self.held_out = _held_out(found, ms)

    def __call__(self, codes: Codes) -> np.ndarray:
        """Milliseconds of a batch [n]."""
        return features(self.space, codes) @ self._weights

    def throughput(self, codes: Codes) -> np.ndarray:
        """Images in a second [n]."""
        return 1000 * self.on.batch_size / self(codes)

    def steady(self, ms: Any, ratio: Any) -> Any:
        """Milliseconds as they are when the device is quiet, from those measured and the ratio to the smallest arch."""
        return ms if self.quiet_ms is None else ratio * self.quiet_ms

    def check(self, on: TimedOn) -> None:
        """Refuse what it has not learned from.

        Raises:
            UserError: `on` is another device, batch size, dtype, number of threads or version of torch.
        """
        if on != self.on:
            raise UserError(f"latency was learned on {self.on}, and says nothing of {on}: time this space there")

    def describe(self) -> str:
        """What it learned from and how good it is, in words."""
        quality = f"median error {self.held_out.error:.1%}, rank correlation {self.held_out.rank:.3f}, held out"
        return f"latency on {self.on}: predicted from {self.timings} timings ({quality})"


def features(space: Space, codes: Codes) -> np.ndarray:
    """What time is made of, float64 [n, kinds x 3]: MACs, parameters and acting parts of each kind of part."""
    kinds: dict[str, np.ndarray] = {}
    for term, counts in counted(space, codes):
        kind = kinds.setdefault(template_of(term.name), np.zeros((3, len(codes))))
        kind += counts.macs, counts.params, (counts.macs > 0) | (counts.params > 0)
    return np.concatenate(list(kinds.values())).T


def _fit(found: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Weights of features [k] that are not negative, by least squares of relative errors."""
    scale = np.maximum(found.max(axis=0), 1.0)  # solvers like columns of one size
    return nnls(found / scale / ms[:, None], np.ones(len(ms)))[0] / scale


def _held_out(found: np.ndarray, ms: np.ndarray) -> HeldOut:
    fold = np.random.default_rng(0).permutation(len(ms)) % FOLDS
    predicted = np.empty(len(ms))
    for held in range(FOLDS):
        predicted[fold == held] = found[fold == held] @ _fit(found[fold != held], ms[fold != held])
    error = float(np.median(np.abs(predicted / ms - 1)))
    return HeldOut(predicted, error, float(spearmanr(predicted, ms).statistic))
