"""Latency prediction: a model fitted to a few hundred timed archs of a space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from raynas.costs.cost import counted
from raynas.errors import UserError
from raynas.latency.timing import TimedOn
from raynas.space import Codes, Space
from raynas.space.dimension import template_of

LEAST = 10
"""The fewest timings to fit a predictor to."""

FOLDS = 5
QUIET = 0.1
"""The quantile of the smallest arch's times that is taken as its time on a quiet device."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions of timings by models fitted without them.

    Attributes:
        predicted: milliseconds [n].
        error: median absolute error, as a fraction of the measured time.
        rank: Spearman's rank correlation with the measured times.
    """

    predicted: np.ndarray
    error: float
    rank: float


class LatencyPredictor:
    """A latency predictor from codes to milliseconds of a batch, valid for the device and conditions of its timings.

    A subnet's time is a sum over kinds of parts (the attention of all blocks of a stage is one kind), with a weight for
    each multiply-accumulate, each parameter and each active part. No weight is negative, so a larger subnet is never
    predicted to be faster. The fit minimises relative errors.

    Attributes:
        on: the device and conditions of the timings.
        quiet_ms: time of the space's smallest arch on a quiet device; see `steady`.
        timings: number of timed archs that it was fitted to.
        held_out: its error on held-out timings, by five-fold cross-validation.
    """

    def __init__(self, space: Space, codes: Codes, ms: np.ndarray, on: TimedOn, ratio: np.ndarray | None = None):
        """Fit the predictor.

        Args:
            codes: the timed archs [n, dimensions].
            ms: measured milliseconds [n].
            on: the device and conditions of the timings.
            ratio: each arch's ratio to the space's smallest arch, timed in turns with it [n]. None assumes that the
                device was equally fast throughout.

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
        """Predict the milliseconds of a batch [n]."""
        return features(self.space, codes) @ self._weights

    def throughput(self, codes: Codes) -> np.ndarray:
        """Predict the images per second [n]."""
        return 1000 * self.on.batch_size / self(codes)

    def steady(self, ms: Any, ratio: Any) -> Any:
        """Return milliseconds on a quiet device, from measured ones and their ratio to the smallest arch's."""
        return ms if self.quiet_ms is None else ratio * self.quiet_ms

    def check(self, on: TimedOn) -> None:
        """Refuse another device, batch size, dtype, number of threads or version of torch than that of the timings."""
        if on != self.on:
            raise UserError(f"latency was learned on {self.on}, and says nothing of {on}: time this space there")

    def describe(self) -> str:
        """Return a description of its timings and accuracy."""
        quality = f"median error {self.held_out.error:.1%}, rank correlation {self.held_out.rank:.3f}, held out"
        return f"latency on {self.on}: predicted from {self.timings} timings ({quality})"


def features(space: Space, codes: Codes) -> np.ndarray:
    """Return the features of archs, float64 [n, kinds x 3]: MACs, parameters and active parts of each kind of part."""
    kinds: dict[str, np.ndarray] = {}
    for term, counts in counted(space, codes):
        kind = kinds.setdefault(template_of(term.name), np.zeros((3, len(codes))))
        kind += counts.macs, counts.params, (counts.macs > 0) | (counts.params > 0)
    return np.concatenate(list(kinds.values())).T


def _fit(found: np.ndarray, ms: np.ndarray) -> np.ndarray:
    """Fit non-negative weights of features [k] by least squares of relative errors."""
    scale = np.maximum(found.max(axis=0), 1.0)  # equal column scales for the solver
    from scipy.optimize import nnls  # slow import

    return nnls(found / scale / ms[:, None], np.ones(len(ms)))[0] / scale


def _held_out(found: np.ndarray, ms: np.ndarray) -> HeldOut:
    fold = np.random.default_rng(0).permutation(len(ms)) % FOLDS
    predicted = np.empty(len(ms))
    for held in range(FOLDS):
        predicted[fold == held] = found[fold == held] @ _fit(found[fold != held], ms[fold != held])
    error = float(np.median(np.abs(predicted / ms - 1)))
    from scipy.stats import spearmanr  # slow import

    return HeldOut(predicted, error, float(spearmanr(predicted, ms).statistic))
