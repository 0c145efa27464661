"""Report section on several evolutions of a space: a row for each trial, and a comparison of their spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raynas import drawing
from raynas.comparison import best_first
from raynas.reports.collect import Tried
from raynas.reports.evolution import best_space, budgets_differ, error_distributions, errors_of
from raynas.reports.html import Percent, Section, Table, drawn
from raynas.results.schemas import Row
from raynas.space.counting import shown_count
from raynas.text import seconds_text


def trials_section(trials: Sequence[Tried]) -> Section | None:
    """Return the section on the trials of an experiment, the best first; None if none has finished an iteration."""
    without = [trial.values for trial in trials if not trial.spaces]
    trials = _best_trials(trials)
    if not trials:
        return None
    searched = any(trial.searched for trial in trials)
    header = [
        "trial",
        "spaces",
        "first E-T error",
        "lowest E-T error",
        "standard error",
        "its top tier",
        "at iteration",
    ]
    header += ["each iteration took", "last space", "archs in it", "ended"]
    header += ["best subnet's error", "its MACs", "subnets searched"] if searched else []
    rows = [_row(trial, searched) for trial in trials]
    curves = {trial.values: trial.spaces for trial in trials}
    words = "; ".join(f"{trial.values} {_best(trial)['error']:.2%}" for trial in trials)
    best = {trial.values: errors_of(trial.scores, _best(trial)["iteration"]) for trial in trials}
    return Section(
        "The trials",
        [
            "The E-T error of a space is the mean of the average error of its scored subnets and of that of the best "
            "of them. Standard errors are of the sample of subnets; the spread of a supernet's training shows in "
            "trials that differ by their seed alone. Each trial is a run directory with a report of its own.",
            Table("trials", header, rows),
            f"Without a finished iteration: {'; '.join(without)}." if without else None,
            budgets_differ([row for trial in trials for row in trial.searched]),
            drawn(
                errors_by_iteration(curves),
                "trials-errors",
                f"E-T errors of {len(trials)} trials over their iterations. The lowest: {words}.",
                "The E-T error of each trial's spaces. Bars are standard errors.",
            ),
            drawn(
                error_distributions(best),
                "trials-distributions",
                f"Cumulative distributions of the errors of the subnets of {len(trials)} spaces, each trial's best.",
                "Share of the scored subnets of each trial's best space with at most the error on the axis.",
            ),
        ],
    )


def trials_lead(trials: Sequence[Tried]) -> str:
    """Return the result in a sentence."""
    trials = _best_trials(trials)
    best = trials[0]
    row = _best(best)
    others = [trial.values for trial in trials[1:] if _best(trial)["error"] == row["error"]]
    tie = f" Equal to {'; '.join(others)}: ties go to fewer MACs on average, then to the first." if others else ""
    return (
        f"The space evolved in {len(trials)} trial(s). The lowest E-T error, {row['error']:.2%} ± "
        f"{row['standard_error']:.2%} (standard error), is that of {best.values} at iteration {row['iteration']}.{tie}"
    )


def _best(trial: Tried) -> Row:
    """Return the row of a trial's space of the lowest E-T error."""
    return best_space(trial.spaces)


def _best_trials(trials: Sequence[Tried]) -> list[Tried]:
    """Return the trials that have finished an iteration, the best first; see `best_space`."""
    there = [trial for trial in trials if trial.spaces]
    best = [_best(trial) for trial in there]
    order = best_first([row["error"] for row in best], [[row["mean_macs"] for row in best]])
    return [there[index] for index in order]


def _row(trial: Tried, searched: bool) -> list[Any]:
    first, best, last = trial.spaces[0], _best(trial), trial.spaces[-1]
    cells = [
        trial.values, len(trial.spaces), Percent(first["error"]), Percent(best["error"]),
        Percent(best["standard_error"]), Percent(best["top"]), best["iteration"],
        ", ".join(seconds_text(row["seconds"]) for row in trial.spaces),
        f"{trial.folder}/spaces/{last['iteration']}.yaml", shown_count(int(last["cardinality"])),
        "no" if last["ended"] is None else "yes",
    ]  # fmt: skip
    if searched:
        order = best_first([row["error"] for row in trial.searched], [[row["macs"] for row in trial.searched]])
        found = trial.searched[order[0]] if order else None
        cells += [None] * 3 if found is None else [Percent(found["error"]), found["macs"], found["evaluations"]]
    return cells


@matplotlib.rc_context(drawing.STYLE)
def errors_by_iteration(trials: Mapping[str, Sequence[Row]]) -> Figure:
    """Draw E-T errors with their standard errors, a line for each trial.

    Args:
        trials: rows of table `spaces` by trial.
    """
    figure, axes = drawing.new_figure(3.6)
    looks = zip(trials.items(), cycle(drawing.PALETTE), cycle(drawing.STYLES), strict=False)
    for place, ((name, spaces), colour, style) in enumerate(looks):
        where = [row["iteration"] + 0.03 * (place - (len(trials) - 1) / 2) for row in spaces]
        errors = np.array([[row["error"], row["standard_error"]] for row in spaces])
        look: dict[str, Any] = {"color": colour, "ls": style, "marker": "o", "ms": 4, "capsize": 2}
        axes.errorbar(where, errors[:, 0], errors[:, 1], label=drawing.shown(name), **look)
    axes.set(xlabel="iteration", ylabel="E-T error on the search split")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    drawing.percent(axes.yaxis)
    drawing.legend(figure)
    return figure
