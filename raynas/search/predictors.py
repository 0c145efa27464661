"""Predictors of scores, and their quality on held-out archs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from raynas.errors import UserError
from raynas.space import Codes, Space
from raynas.user_code import running

Predict = Callable[[Codes], np.ndarray]
"""A predictor from codes [n, dimensions] to values [n]."""

Fit = Callable[[Space, Codes, np.ndarray, int], Predict]
"""A function that fits a predictor to the space, codes [n, dimensions], measured values [n] and a seed."""

TREES = 100
TOP = 0.1
"""The share of archs that a search would pick; see `PredictorQuality.regret`."""


def fit_forest(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Predict:
    """Fit a random forest of 100 trees (NASViT, Algorithm 2; the settings of AttentiveNAS's released predictor).

    The features are the codes: choices are ascending, and an inactive gene has a code below all of them, so that one
    threshold of a tree can test for an active block.
    """
    from sklearn.ensemble import RandomForestRegressor  # slow import, for this search only

    forest = RandomForestRegressor(TREES, random_state=seed % 2**32).fit(codes, values)
    return lambda codes: forest.predict(codes)


PREDICTORS: dict[str, Fit] = {"forest": fit_forest}


@dataclass(frozen=True)
class PredictorQuality:
    """Quality of a predictor of one objective on held-out archs.

    Attributes:
        objective: the predicted objective.
        fitted: number of archs that it was fitted to.
        codes: codes of the held-out archs [n, dimensions].
        measured, predicted: their values [n].
        kendall: Kendall's tau-b of the two; NaN if one of them is constant.
        spearman: Spearman's rank correlation.
        rmse: root mean square error, in the objective's unit.
        regret: difference between the best arch and the best one in the tenth that is predicted best.
        by_macs: Kendall's tau of measured values with MACs, which need no predictor.
    """

    objective: str
    fitted: int
    codes: Codes
    measured: np.ndarray
    predicted: np.ndarray
    kendall: float
    spearman: float
    rmse: float
    regret: float
    by_macs: float

    def describe(self) -> str:
        """Return the quality as text."""
        return (
            f"{self.objective} predicted from {self.fitted:,} scores; on {len(self.measured):,} held out: "
            f"Kendall's tau {self.kendall:.3f} (by MACs alone {self.by_macs:.3f}), Spearman's rho {self.spearman:.3f}, "
            f"RMSE {self.rmse:.3g}, the best of its top {TOP:.0%} {self.regret:.3g} below the best"
        )


def assess(
    objective: str,
    largest: bool,
    fitted: int,
    codes: Codes,
    measured: np.ndarray,
    predicted: np.ndarray,
    macs: np.ndarray,
) -> PredictorQuality:
    """Compare predictions with measurements.

    Args:
        codes: codes of the held-out archs [n, dimensions], n at least 1.
        measured, predicted, macs: their values [n].
    """
    from scipy import stats  # slow import

    sign = 1 if largest else -1
    top = np.argsort(-sign * predicted, kind="stable")[: max(1, round(TOP * len(predicted)))]
    return PredictorQuality(
        objective,
        fitted,
        codes,
        measured,
        predicted,
        kendall=_correlation(stats.kendalltau, predicted, measured),
        spearman=_correlation(stats.spearmanr, predicted, measured),
        rmse=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        regret=float(np.max(sign * measured) - np.max(sign * measured[top])),
        by_macs=_correlation(stats.kendalltau, macs, measured),
    )


def checked(predict: Predict) -> Predict:
    """Wrap a predictor, maybe the user's own, with a check that it returns one finite number for each arch."""

    def answer(codes: Codes) -> np.ndarray:
        with running("predictor"):
            values = np.asarray(predict(codes))
        if values.shape != (len(codes),) or values.dtype.kind not in "biuf":
            raise UserError(
                f"the predictor must give one number for each arch, [{len(codes)}]: "
                f"it gives {values.dtype} {list(values.shape)}"
            )
        if not np.isfinite(values).all():
            raise UserError(f"the predictor gives {values[~np.isfinite(values)][0]} for an arch")
        return values

    return answer


def _correlation(statistic: Callable[..., Any], x: np.ndarray, y: np.ndarray) -> float:
    return float(statistic(x, y).statistic) if np.ptp(x) > 0 and np.ptp(y) > 0 else math.nan
