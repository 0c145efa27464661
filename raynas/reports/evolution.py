"""Report section on space evolution: moves of the choices, errors, and the best subnet of each space."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raynas import drawing
from raynas.comparison import best_first
from raynas.reports.html import Part, Percent, Section, Table, drawn
from raynas.results.schemas import Row
from raynas.space.counting import shown_count
from raynas.text import seconds_text

_COLUMNS = 3  # columns of small plots


def evolution_section(
    spaces: Sequence[Row], moves: Sequence[Row], scores: Sequence[Row], searched: Sequence[Row] = ()
) -> Section | None:
    """Return the section on the evolution of a run's space; None if there was none.

    Args:
        spaces: rows of table `spaces`, in order.
        moves: rows of table `space_moves`.
        searched: best subnet of each space that was searched; see `raynas.outer.report_data.searched_spaces`.
    """
    if not spaces:
        return None
    header = ["space", "archs in it", "scored", "E-T error", "standard error", "mean error", "top tier", "took"]
    rows = [
        [
            row["name"], shown_count(int(row["cardinality"])), row["archs"], Percent(row["error"]),
            Percent(row["standard_error"]), Percent(row["mean"]), Percent(row["top"]), seconds_text(row["seconds"]),
        ]
        for row in spaces
    ]  # fmt: skip
    header_of_best = ["space", "best scored subnet", "its error", "its MACs", "its parameters"]
    best_scored = [
        [row["name"], row["best"], Percent(row["best_error"]), row["best_macs"], row["best_params"]] for row in spaces
    ]
    best = best_space(spaces)
    words = "; ".join(f"space {row['iteration']} {row['error']:.2%}" for row in spaces)
    errors = {f"space {row['iteration']}": errors_of(scores, row["iteration"]) for row in spaces}
    numbers = [
        [row["iteration"], row["axis"], _listed(row["choices"]), _listed(row["after"]), *_line(row)] for row in moves
    ]
    header_of_moves = ["space", "axis", "choices", "next choices", "slope", "standard error", "steps", "sure", "notes"]
    return Section(
        "The evolution of the space",
        [
            f"The best space is that of iteration {best['iteration']}, with an E-T error of {best['error']:.2%} "
            f"± {best['standard_error']:.2%} (standard error): the mean of the average error of its scored subnets and "
            "of that of the best of them. All spaces were scored within the same limits, with the weights of a "
            "supernet of their own. "
            f"{_end(spaces[-1])}",
            Table("spaces", header, rows),
            Table("best-scored", header_of_best, best_scored),
            *_searched(searched),
            drawn(
                error_distributions(errors),
                "errors",
                f"Cumulative distributions of the errors of the subnets of {len(spaces)} spaces. E-T errors: {words}.",
                "Share of each space's scored subnets with at most the error on the axis (S3, Figures 3 and 6).",
            ),
            drawn(
                choices_by_iteration(moves),
                "choices",
                f"The choices of {len({row['axis'] for row in moves})} axes over {len(spaces)} spaces; the table "
                "has them.",
                "The choices of each axis in each space (S3, Figure 2). Axes with one choice throughout are left out.",
                Table("moves", header_of_moves, numbers),
                "Every move as a table",
            ),
        ],
    )


def best_space(spaces: Sequence[Row]) -> Row:
    """Return the row of the lowest E-T error; ties by mean MACs, then by order."""
    return spaces[best_first([row["error"] for row in spaces], [[row["mean_macs"] for row in spaces]])[0]]


def evolution_lead(spaces: Sequence[Row]) -> str:
    """Return the result in a sentence."""
    first, best = spaces[0], best_space(spaces)
    return (
        f"The space evolved over {len(spaces)} iteration(s): its E-T error was {first['error']:.2%} at first, and is "
        f"{best['error']:.2%} in the best of the spaces ({best['name']})."
    )


def _end(last: Row) -> str:
    return (
        "The evolution goes on."
        if last["ended"] is None
        else f"The evolution ended with the last space: {last['ended']}."
    )


def _searched(rows: Sequence[Row]) -> list[Part]:
    """Return Table 5 of S3: the best subnet that a search finds in each space."""
    if not rows:
        return []
    header = ["space", "search", "subnets scored", "best subnet", "its error", "its MACs", "its parameters"]
    cells = [
        [row["name"], row["search"], row["evaluations"], row["arch"], Percent(row["error"]), row["macs"], row["params"]]
        for row in rows
    ]
    text = "The best subnet that a search finds in each space (S3, Table 5), with weights inherited from its supernet."
    return [text, Table("searched", header, cells), budgets_differ(rows)]


def budgets_differ(rows: Sequence[Row]) -> str:
    """Return a warning if searches had different budgets, else an empty text."""
    if len({(row["search"], row["evaluations"]) for row in rows}) < 2:
        return ""
    return "These searches differ in their budgets or limits: their best subnets cannot be compared."


def errors_of(scores: Sequence[Row], iteration: int) -> np.ndarray:
    """Return the errors of the subnets that a space was measured by, ascending [n]."""
    found = [1 - row["accuracy"] for row in scores if row["iteration"] == iteration and row["accuracy"] is not None]
    return np.sort(np.array(found))


def _line(row: Row) -> list[Any]:
    numbers = [None if value != value else value for value in (row["slope"], row["slope_error"])]
    sure = None if row["sure"] != row["sure"] else Percent(row["sure"])
    return [*numbers, row["steps"], sure, "; ".join(row["notes"])]


def _listed(choices: str) -> str:
    return ", ".join(f"{choice:g}" for choice in json.loads(choices))


@matplotlib.rc_context(drawing.STYLE)
def error_distributions(errors: Mapping[str, np.ndarray]) -> Figure:
    """Draw cumulative distributions of subnets' errors, a curve for each space.

    Args:
        errors: ascending errors [n] between 0 and 1, by name of the space.
    """
    figure, axes = drawing.new_figure(3.6)
    for (name, values), colour, style in zip(errors.items(), cycle(drawing.PALETTE), cycle(drawing.STYLES)):
        shares = np.arange(1, len(values) + 1) / len(values)
        axes.step(values, shares, where="post", color=colour, linestyle=style, label=drawing.shown(name))
    axes.set(xlabel="top-1 error on the search split, inherited weights", ylabel="share of the subnets", ylim=(0, 1))
    drawing.percent(axes.xaxis)
    drawing.percent(axes.yaxis)
    drawing.legend(figure)
    return figure


@matplotlib.rc_context(drawing.STYLE)
def choices_by_iteration(moves: Sequence[Row]) -> Figure:
    """Draw the choices of each kind of dimension by iteration, a line of dots for each stage (S3, Figure 2).

    Args:
        moves: rows of table `space_moves`.
    """
    by_kind: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in moves:
        stage = row["axis"].rpartition(".")[0].replace(".blocks.*", "").replace("blocks.*", "")
        kind = by_kind.setdefault(row["axis"].rpartition(".")[2], {})
        kind.setdefault(stage or "all", {})[row["iteration"]] = json.loads(row["choices"])
    moving = {
        kind: axes
        for kind, axes in by_kind.items()
        if any(len(choices) > 1 for spaces in axes.values() for choices in spaces.values())
    }
    rows = -(-max(len(moving), 1) // _COLUMNS)
    figure = Figure(figsize=(7.2, 2.4 * rows + 0.4), layout="constrained")
    for place, (leaf, stages) in enumerate(moving.items()):
        axes = figure.add_subplot(rows, _COLUMNS, place + 1)
        for number, (stage, spaces) in enumerate(stages.items()):
            colour = drawing.PALETTE[number % len(drawing.PALETTE)]
            aside = 0.12 * (number - (len(stages) - 1) / 2)
            for iteration, choices in spaces.items():
                at = np.full(len(choices), iteration + aside)
                axes.plot(at, choices, color=colour, marker="o", ms=4, lw=1, label=stage if not iteration else None)
        axes.set_title(leaf.replace("_", " "))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(alpha=0.2, color=drawing.PALETTE[5])
        if place >= len(moving) - _COLUMNS:
            axes.set_xlabel("space")
    if len({stage for stages in moving.values() for stage in stages}) > 1:
        drawing.legend(figure)
    return figure
