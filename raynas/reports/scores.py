"""Report sections on scores: accuracy of every scored subnet against each cost that the searches use."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raynas import figures
from raynas.comparison import mean_interval, pareto
from raynas.quantities import QUANTITIES, number
from raynas.reports.collect import HOW, Content, Finished, Trace
from raynas.reports.html import Percent, Section, Table, drawn
from raynas.results.schemas import Row

TWO_PATHS = (
    "This space shares weights bilaterally: a score is that of the mean of a left and a right path's logits. A network "
    "with inherited weights is the left path alone, another network than what was scored."
)
OUTSIDE = "outside of searches"  # such as what space evolution scores
_COUNTED = ("macs", "params")  # every row of `scores` has them


@dataclass(frozen=True)
class Cost:
    """A cost that the searches of a run use, and its known values.

    Attributes:
        timed_on: device and conditions of its values; empty if it is counted.
        traces: courses of the searches that use it.
        values: values by arch, as used by the searches.
        measured: measured values by arch, for archs that were timed.
    """

    name: str
    timed_on: str = ""
    traces: Sequence[Trace] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def limits(self) -> list[float]:
        """Return the bounds of its searches, each once."""
        bounds = [bound for trace in self.traces for bound in trace.limits[self.name] if bound is not None]
        return sorted(set(bounds))

    def of(self, found: Finished) -> float | None:
        """Return a finished network's cost: measured, else counted or predicted; None if it is unknown."""
        if self.name in _COUNTED:
            return found.macs if self.name == "macs" else found.params
        if found.size is not None:  # on other images than those of the search
            return None
        return self.measured.get(found.arch, self.values.get(found.arch))


def costs_of(content: Content) -> list[Cost]:
    """Return the costs that the searches of a run use, those of the main search first; MACs if there are none."""
    groups: dict[tuple[str, str], list[Trace]] = {}
    for trace in content.traces:
        for name in trace.limits:
            on = trace.timed_on if QUANTITIES[name].measured else ""
            groups.setdefault((name, on), []).append(trace)
    return [_cost(content, name, on, traces) for (name, on), traces in (groups or {("macs", ""): []}).items()]


def _cost(content: Content, name: str, timed_on: str, traces: Sequence[Trace]) -> Cost:
    if name in _COUNTED:
        values = {row["arch"]: row[name] for row in content.scores if row[name] is not None}
    else:
        pairs = [pair for trace in traces for pair in zip(trace.archs, trace.costs.get(name, ()), strict=False)]
        values = {arch: value for arch, value in pairs if not math.isnan(value)}
    column = QUANTITIES[name].measured
    rows = [row for trace in traces if trace.timed is not None for row in trace.timed.rows]
    measured = {row["arch"]: row[column] for row in rows if column and row[column] is not None}
    return Cost(name, timed_on, traces, values, measured)


def has_two_paths(content: Content) -> bool:
    """Return True if subnets are scored as the mean of two paths; a space of one arch has one."""
    space = content.space
    return space is not None and space.constants.sharing == "bilateral" and space.cardinality() > 1


def scores_sections(content: Content) -> list[Section]:
    """Return a section for each cost that the searches use."""
    return [_section(content, cost, f"-{place}" if place else "") for place, cost in enumerate(costs_of(content))]


def _section(content: Content, cost: Cost, suffix: str) -> Section:
    quantity = QUANTITIES[cost.name]
    heading = f"Accuracy against {quantity.title}"
    scored = [row for row in content.scores if row["accuracy"] is not None]
    rows = [row for row in scored if row["arch"] in cost.values]
    if not rows:
        unknown = f"The {quantity.title} of the scored subnets is not known."
        return Section(heading, [unknown if scored else "No subnet has been scored yet."])
    asked = {arch: trace.name for trace in reversed(content.traces) for arch in trace.archs}
    points: dict[str, list[tuple[float, float]]] = {trace.name: [] for trace in content.traces}
    for row in rows:
        points.setdefault(asked.get(row["arch"], OUTSIDE), []).append((cost.values[row["arch"]], row["accuracy"]))
    groups = {name: _columns(found) for name, found in points.items() if found}
    accuracy = {row["arch"]: row["accuracy"] for row in scored}
    timed = [(value, accuracy[arch]) for arch, value in cost.measured.items() if arch in accuracy]
    if timed:
        groups["when timed"] = _columns(timed)
    costs, accuracies = _columns([(cost.values[row["arch"]], row["accuracy"]) for row in rows])
    front = pareto(costs, accuracies, quantity.higher_is_better)
    on_front = set(zip(*front, strict=True))
    header = ["arch", "asked by", "MACs", "parameters", "accuracy", "loss", "on the front"]
    cells = [
        [
            row["arch"], asked.get(row["arch"], OUTSIDE), row["macs"], row["params"], Percent(row["accuracy"]),
            row["loss"], (cost.values[row["arch"]], row["accuracy"]) in on_front,
        ]
        for row in sorted(rows, key=lambda row: -row["accuracy"])
    ]  # fmt: skip
    if cost.name not in _COUNTED:
        header.insert(2, f"{quantity.unit}, predicted" if quantity.measured else quantity.title)
        for line in cells:
            line.insert(2, cost.values[line[0]])
    ends = [f"{front[1][at]:.2%} at {number(cost.name, front[0][at])}" for at in (0, -1)]
    description = (
        f"Scatter plot of {len(rows)} scored subnets, accuracy on the search split against {quantity.title}. The "
        f"Pareto front goes from {ends[0]} {quantity.unit} to {ends[1]}."
    )
    drawing = figures.accuracy_against_cost(groups, front, cost.name, cost.limits, _on_search_split(content, cost))
    picture = drawn(
        drawing,
        f"scores{suffix}",
        description,
        _caption(content, cost, rows, len(scored), bool(timed)),
        Table(f"scores{suffix}", header, cells),
    )
    return Section(heading, [picture])


def _caption(content: Content, cost: Cost, rows: Sequence[Row], scored: int, timed: bool) -> str:
    quantity = QUANTITIES[cost.name]
    text = (
        f"Each point is one of {len(rows):,} subnets, scored with the weights it inherits from the supernet on "
        f"{rows[0]['images']:,} images of the search split. The line is the best accuracy for a budget."
    )
    if quantity.measured:
        text += f" The {quantity.title} is that on {cost.timed_on}, as predicted from the timings of other subnets."
    if timed:
        text += (
            " The searches' candidates were timed, and are also shown at their measured values, which the limit is for."
        )
    if len(rows) < scored:
        text += f" {scored - len(rows):,} more scored subnets have no such value."
    return text + (f" {TWO_PATHS}" if has_two_paths(content) else "")


def _on_search_split(content: Content, cost: Cost) -> list[figures.Mark]:
    """Return marks of the retrained networks that were measured on the search split, and so not trained on it.

    The many networks of a ranking get one name for each kind of training. Intervals over two seeds are left out: they
    are too wide to be informative, and would flatten the figure.
    """
    marks = []
    for found in content.finished:
        measured, value = [row["accuracy"] for row in found.rows if row["accuracy"] is not None], cost.of(found)
        if measured and value is not None:
            label = found.name if found.label in ("winner", "reference") else f"others, {HOW.get(found.how, found.how)}"
            mean, interval = mean_interval(measured)
            marks.append(figures.Mark(label, value, mean, interval if len(measured) > 2 else None))
    return marks


def _columns(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    costs, accuracy = np.array(points, dtype=float).T
    return costs, accuracy
