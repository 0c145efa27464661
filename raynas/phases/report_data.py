"""Courses of a run's searches, read back from rows for the report."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from raynas.costs import COSTS, Bounds, Constraints, CostFunction
from raynas.latency.predictor import LatencyPredictor
from raynas.phases.latency_winners import known_candidates
from raynas.phases.search import BASELINE
from raynas.reports.collect import Predicted, Timed, Trace
from raynas.results import Store
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.runs.searches import EXACT, MAIN, StoredSearch, predictor_of
from raynas.search import PredictorEvolution
from raynas.search.config import TIMED, SearchConfig
from raynas.search.history import History
from raynas.space import Arch, Space


def traces(run: Run) -> list[Trace]:
    """Return the course of each search of a run, the main one first."""
    found: list[Trace] = []
    for name in run.searches():
        stored, space = run.search(name), run.space
        settings = stored.settings
        config, predictor = settings.search, predictor_of(space, settings, run.store)
        made, finished = stored.read_back()
        history = getattr(made, "history", [])
        accuracy = [None if row.objectives is None else row.objectives.get("accuracy") for row in history]
        label = {MAIN: config.name, BASELINE: "random search"}.get(name, name)
        if label in (trace.name for trace in found):
            label = f"{name} (the search of that name)"
        goes_by: dict[str, Bounds] = {name: (None, None) for name in config.objectives if name in (*COSTS, *TIMED)}
        limits = goes_by | config.constraints
        timed = _timed(run.store, config, made, predictor) if finished and predictor is not None else None
        front = _front(stored, made, timed) if finished else []
        archs = [row.arch for row in history]
        found.append(
            Trace(
                label,
                [arch.id for arch in archs],
                accuracy,
                limits,
                finished,
                timed,
                front,
                _predicted(getattr(made, "search", made)),
                _costs(space, predictor, limits, archs),
                "" if settings.timed_on is None else str(settings.timed_on),
                _best(made),
                "rungs" if config.rungs else config.racing,
                [row.stopped.images for row in history if row.stopped is not None],
                next((row["images"] for row in stored.comparable_scores().values()), None),
            )
        )
    return found


def _costs(
    space: Space, predictor: LatencyPredictor | None, names: Collection[str], archs: Sequence[Arch]
) -> dict[str, list[float]]:
    """Return the archs' costs that are in no table, by name, as the search computes them; NaN for off-grid archs."""
    names = [name for name in names if name not in ("macs", "params")]
    known = [arch in space for arch in archs]
    if not names or not any(known):
        return {}
    timed: dict[str, CostFunction] = (
        {} if predictor is None else {"latency": predictor, "throughput": predictor.throughput}
    )
    codes = space.encode([arch for arch, inside in zip(archs, known, strict=True) if inside])
    counted = Constraints(space, {}, timed).costs(codes)
    found: dict[str, list[float]] = {}
    for name in names:
        values = np.full(len(archs), np.nan)
        values[known] = counted[name]
        found[name] = values.tolist()
    return found


def _best(made: History) -> str | None:
    """Return the id of the arch with the best accuracy; None if accuracy is no objective."""
    if made.objectives.directions.get("accuracy") != "max":
        return None
    rows = made.best_first(made.scored(), "accuracy")
    return rows[0].arch.id if rows else None


def _timed(store: Store, config: SearchConfig, made: Any, predictor: LatencyPredictor) -> Timed:
    timed = known_candidates(store, made, predictor, config.constraints)
    rows = [{"arch": one.arch.id, **one.describe(), "keeps": one.excess == 0} for one in timed]
    return Timed(predictor.describe(), rows)


def _front(stored: StoredSearch, made: Any, timed: Timed | None) -> list[Row]:
    """Return the objectives of the archs on a search's front, with measured times."""
    left = {arch.id for arch in stored.front}
    if not left or not hasattr(made, "front"):
        return []
    times = {row["arch"]: row for row in ([] if timed is None else timed.rows)}
    # A search in another precision has its front by these scores.
    exact = {row["arch"]: row for row in stored.run.scores(stored.settings.scoring.images, EXACT).to_pylist()}
    rows = []
    for row in sorted(made.front(), key=lambda row: list(row.objectives.values())):
        if row.arch.id in left:
            scored = {name: exact[row.arch.id][name] for name in made.objectives.scored if row.arch.id in exact}
            values = {"arch": row.arch.id, **row.objectives, **scored}
            measured = times.get(row.arch.id, {})
            values.update({to: measured[of] for of, to in _TIMES.items() if to in values and measured.get(of)})
            rows.append(values)
    return rows


_QUALITY = ("objective", "fitted", "kendall", "by_macs", "spearman", "rmse", "regret")
_TIMES = {"ms": "latency", "images_per_s": "throughput"}


def _predicted(made: Any) -> Predicted | None:
    """Return the quality of a search's predictors on held-out archs and on the archs that they proposed."""
    if not isinstance(made, PredictorEvolution) or not made.qualities:
        return None
    count = len(made.objectives.scored)  # predictors that are used together, or not at all
    groups = [made.qualities[at : at + count] for at in range(0, len(made.qualities), count)]
    used = [all(each.kendall >= made.least_tau for each in group) for group in groups]
    tried = [
        {name: getattr(quality, name) for name in _QUALITY}
        | {"held_out": len(quality.measured), "used": used[place // count]}
        for place, quality in enumerate(made.qualities)
    ]
    newest = {quality.objective: quality for quality in made.qualities}
    points = []
    for name, quality in newest.items():
        archs = made.space.decode(quality.codes)
        for arch, predicted, measured in zip(archs, quality.predicted, quality.measured, strict=True):
            points.append(_point(name, "held out", arch.id, predicted, measured))
    for row in made.history:
        for name, predicted in made.predictions.get(row.arch, {}).items():
            if row.objectives is not None:
                points.append(_point(name, "proposed", row.arch.id, predicted, row.objectives[name]))
    return Predicted(tried, points)


def _point(objective: str, of: str, arch: str, predicted: float, measured: float) -> Row:
    values = {"predicted": float(predicted), "measured": float(measured)}
    return {"objective": objective, "of": of, "arch": arch, **values}
