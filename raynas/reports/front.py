"""Report sections on fronts: the networks found by a search with several objectives, and its predictors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raynas import figures
from raynas.reports.collect import Trace
from raynas.reports.html import Part, Percent, Picture, Section, Table, drawn
from raynas.results.schemas import Row
from raynas.results.store import rows_by

TITLES = {
    "accuracy": "search split",
    "top5": "top-5, search split",
    "macs": "MACs",
    "params": "parameters",
    "latency": "ms",
    "throughput": "images/s",
}

_TRIED = {
    "objective": "objective",
    "fitted": "fitted to",
    "held_out": "held out",
    "kendall": "Kendall's tau",
    "by_macs": "by MACs alone",
    "spearman": "Spearman's rho",
    "rmse": "RMSE",
    "regret": "regret of the top tenth",
    "used": "used",
}
_POINT = ["of", "arch", "predicted", "measured"]


def front_section(traces: Sequence[Trace], scores: Sequence[Row], evaluations: Sequence[Row]) -> Section | None:
    """Return the section on fronts; None if no search has one.

    Args:
        scores: rows of table `scores`, for MACs and parameters.
        evaluations: rows of table `evaluations`; only those with inherited weights are used.
    """
    sizes = {row["arch"]: {"macs": row["macs"], "params": row["params"]} for row in scores}
    fronts = [(trace.name, {**sizes.get(row["arch"], {}), **row}) for trace in traces for row in trace.front]
    if not fronts:
        return None
    tested = {row["arch"]: row["accuracy"] for row in evaluations if row["how"] == "inherited"}
    names = list(dict.fromkeys(["macs", "params", *(name for _, row in fronts for name in row if name != "arch")]))
    rows = []
    for search, row in fronts:
        cells = [_cell(name, row.get(name)) for name in names]
        rows.append([search, row["arch"], *cells, _cell("accuracy", tested.get(row["arch"]))])
    header = ["search", "arch", *(TITLES.get(name, name) for name in names), "test split"]
    table = Table("front", header, rows)
    text = "Networks that no other scored one beats in all objectives, with inherited weights; all values are measured."
    if any(row["arch"] not in tested for _, row in fronts):
        text += " For accuracies on the test split: raynas evaluate with --arch front (or NAME/front)."
    return Section("Fronts", [text, table])


def predictor_section(traces: Sequence[Trace]) -> Section | None:
    """Return the section on predictors of scores; None if no search had any."""
    found = [(trace.name, trace.predicted) for trace in traces if trace.predicted is not None]
    if not found:
        return None
    rows = [[name, *(row[column] for column in _TRIED)] for name, each in found for row in each.tried]
    parts: list[Part] = [Table("predictors", ["search", *_TRIED.values()], rows)]
    for index, (name, each) in enumerate(found):
        for number, (objective, points) in enumerate(rows_by(each.points, "objective").items()):
            parts.append(_predictions(f"predictions-{index}-{number}", name, objective, points))
    return Section("Quality of the predictor", parts)


def _predictions(key: str, search: str, objective: str, points: Sequence[Row]) -> Picture:
    groups = {of: [(row["predicted"], row["measured"]) for row in rows] for of, rows in rows_by(points, "of").items()}
    counts = ", ".join(f"{len(each)} {of}" for of, each in groups.items())
    return drawn(
        figures.predictions(groups, objective),
        key,
        f"Scatter plot of {objective}, measured against predicted, of {search}: {counts}.",
        f"{search}: {objective} as predicted and as measured, for archs that the predictor was not fitted to: random "
        "ones held out to test it, and those that it proposed. On the line both values are equal.",
        Table(key, _POINT, [[row[column] for column in _POINT] for row in points]),
    )


def _cell(name: str, value: float | None) -> Any:
    if value is None:
        return None
    return Percent(value) if name in ("accuracy", "top5") else int(value) if name in ("macs", "params") else value
