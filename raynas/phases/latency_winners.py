"""End of a search by latency: the best archs are timed, and the winner is chosen by the measured times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from raynas.costs import Bounds
from raynas.latency.measured import time_archs
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.rows import Latencies
from raynas.progress.reporter import Progress, silent
from raynas.results import Store
from raynas.results.schemas import Row
from raynas.search.config import LatencyConfig
from raynas.search.history import FINALISTS, History
from raynas.search.objectives import non_dominated
from raynas.space import Arch


@dataclass(frozen=True)
class Candidate:
    """An arch that a search may choose.

    Attributes:
        predicted_ms: latency predicted during the search.
        ms, quartiles: median latency and quartiles, as on the quiet device (see `LatencyPredictor.steady`); None if
            timing failed.
        excess: largest violation of the limits by the median, as a fraction of the limit; 0 if it keeps them, infinite
            if timing failed.
    """

    arch: Arch
    predicted_ms: float
    ms: float | None
    quartiles: tuple[float, float] | None
    images_per_s: float | None
    reason: str | None
    excess: float

    def __str__(self) -> str:
        if self.ms is None or self.quartiles is None:
            return f"{self.arch.id}, predicted {self.predicted_ms:.4g} ms, cannot be timed ({self.reason})"
        spread = "quartiles {:.4g} to {:.4g}".format(*self.quartiles)
        rate = f"{self.images_per_s:,.4g} images/s"
        return f"{self.arch.id}, predicted {self.predicted_ms:.4g} ms, takes {self.ms:.4g} ms ({spread}; {rate})"

    def describe(self) -> dict[str, Any]:
        """Return the candidate as plain values, for files and tables."""
        low, high = self.quartiles or (None, None)
        return {
            "predicted_ms": self.predicted_ms,
            "ms": self.ms,
            "ms_q1": low,
            "ms_q3": high,
            "images_per_s": self.images_per_s,
        }


def time_candidates(
    store: Store,
    search: History,
    config: LatencyConfig,
    predictor: LatencyPredictor,
    limits: Mapping[str, Bounds],
    progress: Progress = silent,
    attempt: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[Candidate]:
    """Time the candidates of a finished search: its best archs or its whole front, or `best()` of a user's own search.

    Args:
        limits: the search's constraints; only those on latency and throughput are used.

    Returns:
        The candidates, best first.

    Raises:
        UserError: no arch has a score, or the device is missing or not the predictor's.
    """
    archs = search.finalists(FINALISTS)  # raises if nothing has a score
    predicted = list(predictor(predictor.space.encode(archs)))
    rows = time_archs(store, archs, config, config.resources, predictor.on, predicted, progress, attempt)
    return _best_first(_checked(archs, rows, predictor, limits), search)


def known_candidates(
    store: Store, search: History, predictor: LatencyPredictor, limits: Mapping[str, Bounds]
) -> list[Candidate]:
    """Return the candidates of a search that have been timed."""
    known = Latencies(store, predictor.on)
    found = {arch: row for arch in search.finalists(FINALISTS) if (row := known.find(arch)) is not None}
    return _best_first(_checked(list(found), list(found.values()), predictor, limits), search)


def _checked(
    archs: Sequence[Arch], rows: Sequence[Row], predictor: LatencyPredictor, limits: Mapping[str, Bounds]
) -> list[Candidate]:
    found = []
    for arch, row, predicted in zip(archs, rows, predictor(predictor.space.encode(archs)), strict=True):
        if row["status"] != "ok":
            found.append(Candidate(arch, float(predicted), None, None, None, row["reason"], math.inf))
            continue
        ms = predictor.steady(row["ms"], row["ratio"])
        low, high = (row[name] / row["ms"] * ms for name in ("ms_q1", "ms_q3"))
        rate = 1000 * row["batch_size"] / ms
        excess = max(_excess(ms, limits.get("latency")), _excess(rate, limits.get("throughput")))
        found.append(Candidate(arch, float(predicted), ms, (low, high), rate, None, excess))
    return found


def _best_first(found: Sequence[Candidate], search: History) -> list[Candidate]:
    """Return candidates in the order of the search, with ties broken by measured values; a front stays as it is."""
    if len(search.objectives.names) > 1:
        return list(found)
    by_arch = {one.arch: one for one in found}
    measured = {
        one.arch: {"latency": one.ms, "throughput": one.images_per_s}
        for one in found
        if one.ms is not None and one.images_per_s is not None
    }
    rows = [row for row in search.history if row.arch in by_arch]
    ordered = dict.fromkeys(row.arch for row in search.best_first(rows, measured=measured))
    return [by_arch[arch] for arch in ordered]


def _excess(value: float, bounds: Bounds | None) -> float:
    """Return the distance of a value from its bounds, as a fraction of the bound; 0 inside."""
    low, high = bounds or (None, None)
    if high is not None and value > high:
        return value / high - 1 if high > 0 else math.inf
    return 1 - value / low if low is not None and value < low else 0.0


def unbeaten(found: Sequence[Candidate], search: History) -> list[Candidate]:
    """Return the Pareto front of candidates by scores and measured times, since the search used predicted times.

    Args:
        found: candidates kept by `choose_within_limits`.
    """
    if len(found) < 2 or len(search.objectives.names) < 2:
        return list(found)
    scores = {row.arch: row.objectives or {} for row in search.history}
    measured: list[dict[str, Any]] = [
        {**scores[one.arch], "latency": one.ms, "throughput": one.images_per_s} for one in found
    ]
    keep = non_dominated(search.objectives.minimised(measured))
    return [one for one, kept in zip(found, keep, strict=True) if kept]


def choose_within_limits(found: Sequence[Candidate], several: bool) -> tuple[list[Candidate], str]:
    """Return the candidates that keep the limits, and a line for the user.

    Args:
        found: candidates, best first.
        several: True if there are several objectives, and so a front.

    Returns:
        The candidates that keep the limits, best first; if none does, the one with the smallest violation.
    """
    kept = [one for one in found if one.excess == 0]
    if not kept:
        nearest = min(found, key=lambda one: one.excess)
        return [nearest], f"none of the best {len(found)} keeps the limits when timed; the nearest is {nearest}"
    if several:
        dropped = len(found) - len(kept)
        told = f"{dropped} of {len(found)} on the front break the limits when timed and are left out"
        return kept, told if dropped else f"all {len(found)} on the front are timed and keep the limits"
    if kept[0] is found[0]:
        return kept, f"the best is {kept[0]}"
    return kept, f"the best breaks the limits when timed: {found[0]}. The best that keeps them is {kept[0]}"
