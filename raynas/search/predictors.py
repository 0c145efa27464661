"""Predictors of scores, and their quality on held-out archs."""

from __future__ import annotations

import math
import warnings
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
KERNEL_ARCHS = 256
PAIRS = 20
RANKING_FEATURES = 200
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


def fit_boosting(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Predict:
    """Fit gradient-boosted trees (Friedman, 2001) with scikit-learn's defaults: 100 trees of depth 3, a rate of 0.1.

    The features are the codes, as for the forest.
    """
    from sklearn.ensemble import GradientBoostingRegressor

    boosting = GradientBoostingRegressor(random_state=seed % 2**32).fit(codes, values)
    return lambda codes: boosting.predict(codes)


def fit_gaussian_process(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Predict:
    """Fit a Gaussian process with noise (Rasmussen and Williams, 2006), and predict its mean.

    The kernel is a Matern kernel of nu = 1.5 with a length scale for each gene, times a variance, plus white noise;
    codes are scaled to unit variance, and values as well. The kernel's numbers maximise the marginal likelihood of at
    most `KERNEL_ARCHS` of the archs; the mean then rests on all n, in time n^3.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler().fit(codes)
    x, few = scaler.transform(codes), np.random.default_rng(seed).permutation(len(codes))[:KERNEL_ARCHS]
    genes = codes.shape[1]
    scales = Matern(np.full(genes, math.sqrt(genes)), length_scale_bounds=(0.1, 1e4), nu=1.5)
    kernel = ConstantKernel() * scales + WhiteKernel(0.1, (1e-4, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound: the gene hardly matters
        kernel = GaussianProcessRegressor(kernel, normalize_y=True).fit(x[few], values[few]).kernel_
    process = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True).fit(x, values)
    return lambda codes: process.predict(scaler.transform(codes))


def fit_ranking(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Predict:
    """Fit a ranking: logistic regression on the differences of pairs (Herbrich et al., 1999; RankNet's loss, 2005).

    Each arch is paired with `PAIRS` others; a score, linear in `RANKING_FEATURES` features that approximate a Gaussian
    kernel of the codes (Nystroem), is to put each pair in its order. Only the order is learnt: predictions are the
    scores, shifted and scaled to the values' mean and deviation.
    """
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(seed)
    first = np.repeat(np.arange(len(codes)), PAIRS)
    second = rng.integers(len(codes), size=len(first))
    differ = values[first] != values[second]
    if not differ.any():
        return lambda codes: np.full(len(codes), values.mean())
    kernel = Nystroem(
        gamma=0.5 / codes.shape[1], n_components=min(RANKING_FEATURES, len(codes)), random_state=seed % 2**32
    )
    features = make_pipeline(StandardScaler(), kernel).fit(codes)
    x, first, second = features.transform(codes), first[differ], second[differ]
    order = np.where(values[first] > values[second], 1, -1)
    # Every pair in both directions, so that there are two classes even if the draw had one.
    pairs, wins = np.concatenate([x[first] - x[second], x[second] - x[first]]), np.concatenate([order, -order])
    weights = LogisticRegression(fit_intercept=False, max_iter=1000).fit(pairs, wins).coef_[0]
    scores = x @ weights
    scale = values.std() / scores.std()
    return lambda codes: values.mean() + scale * (features.transform(codes) @ weights - scores.mean())


PREDICTORS: dict[str, Fit] = {
    "forest": fit_forest,
    "boosting": fit_boosting,
    "gaussian_process": fit_gaussian_process,
    "ranking": fit_ranking,
}


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
