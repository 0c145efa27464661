"""Report section on adapting: what a sample of subnets scores before the supernet's training, and after it."""

from __future__ import annotations

import numpy as np

from raynas import figures
from raynas.comparison import pareto
from raynas.quantities import bounds_text
from raynas.reports.html import Percent, Section, Table, drawn
from raynas.reports.sampled import ADAPTED, ORDERED, WORDS, Sampled, sampled
from raynas.runs.run import Run

LOST = 0.05
"""Accuracy that the model itself may lose in the supernet's training without a word."""


def adapting_lines(run: Run) -> list[str]:
    """Return the sample's scores in lines: for each range of MACs the best and the mean of each kind of weights."""
    found = sampled(run)
    if found is None:
        return []
    names = list(found.accuracy)
    lines = [f"{'best, mean of subnets':<26}" + "".join(f"{WORDS[name]:>22}" for name in names)]
    for low, high, inside in found.ranges():
        cells = "".join(f"{_best_and_mean(found.accuracy[name][inside]):>22}" for name in names)
        lines.append(f"{bounds_text('macs', (low, high)):<26}{cells}")
    whole = found.of_model()
    if ADAPTED in whole and whole[ORDERED] - whole[ADAPTED] > LOST:
        lines.append(
            f"The training of the supernet took the model itself from {whole[ORDERED]:.1%} to {whole[ADAPTED]:.1%}: "
            "in a new run directory lower recipe.lr, or train for more epochs"
        )
    return lines


def chance_lines(run: Run) -> list[str]:
    """Return a line if the model, with the classifier that it was given with, is no better than chance."""
    found, classes = sampled(run), run.space.classes
    if found is None or (accuracy := found.of_model()[ORDERED]) > 1 / classes:
        return []
    return [
        f"The model itself has {accuracy:.1%} on {classes} classes, no more than chance: its classes may be others, or "
        "in another order; --set adapt.head=new makes a new classifier (in a new run directory)"
    ]


def _best_and_mean(values: np.ndarray) -> str:
    known = values[~np.isnan(values)]
    return f"{known.max():.1%}, {known.mean():.1%}" if len(known) else "-"


def adapting_section(found: Sampled | None) -> Section | None:
    """Return the section on adapting; None without a sample."""
    if found is None:
        return None
    names = list(found.accuracy)
    header = ["MACs from", "to", "subnets"]
    header += [f"{WORDS[name]}, {what}" for name in names for what in ("best", "mean")]
    rows = []
    for low, high, inside in found.ranges():
        values = [found.accuracy[name][inside] for name in names]
        cells = [Percent(of(each)) for each in values for of in (np.nanmax, np.nanmean)]
        rows.append([int(low), int(high), len(inside), *cells])
    table = Table("adapting", header, rows)
    last = found.accuracy[names[-1]]
    known = ~np.isnan(last)
    drawing = figures.accuracy_against_cost(
        {WORDS[name]: (found.macs, found.accuracy[name]) for name in names}, pareto(found.macs[known], last[known])
    )
    words = "; ".join(f"{WORDS[name]}: {_best_and_mean(found.accuracy[name])}" for name in names)
    description = f"Scatter plot of {len(found.macs)} subnets, accuracy against MACs. Best and mean of {words}."
    caption = (
        f"The same {len(found.macs)} random subnets with the weights of the original model, heads, hidden units and "
        f"channels in random order and in that of their importance ({found.importance}), before any training"
        + (", and with the weights of the adapted supernet." if ADAPTED in names else ".")
        + " A search finds better ones than such a sample. All on the search split."
    )
    return Section("Before and after adapting", [drawn(drawing, "adapting", description, caption, table)])
