"""Figures of runs and reports, from plain arrays: each function returns one matplotlib figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, product
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from raynas.comparison import half_width
from raynas.drawing import INK, PALETTE, STYLE, STYLES, WIDTH, legend, new_figure, percent, shown
from raynas.quantities import QUANTITIES, amount
from raynas.space import Arch, Space

Estimates = Mapping[str, tuple[float, float, float]]
"""Value and interval (lower end, upper end) by statistic."""


@dataclass(frozen=True)
class Mark:
    """A finished network: its cost, its accuracy in [0, 1] and the half-width of the interval around it."""

    label: str
    cost: float
    accuracy: float
    interval: float | None = None


@matplotlib.rc_context(STYLE)
def regret(curves: Mapping[str, np.ndarray]) -> Figure:
    """Draw the regret of search algorithms: mean over seeds, with its 95 % Student t interval.

    Args:
        curves: regret in accuracy (0 to 1) by algorithm, [seeds, evaluations].
    """
    figure, axes = new_figure(3.8)
    for (name, values), colour in zip(curves.items(), cycle(PALETTE)):
        evaluations = np.arange(1, values.shape[1] + 1)
        mean = values.mean(axis=0)
        half = np.zeros_like(mean)
        if len(values) > 1:
            half = half_width(len(values)) * values.std(axis=0, ddof=1) / np.sqrt(len(values))
        axes.plot(evaluations, mean, color=colour, label=shown(name))
        axes.fill_between(evaluations, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="subnets scored", ylabel="accuracy below the best there is")
    started = max(values[:, min(10, values.shape[1]) - 1].mean() for values in curves.values())
    axes.set_ylim(0, 1.3 * started or 1)  # the first few are far larger, and would flatten the rest
    percent(axes.yaxis)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def accuracy_against_cost(
    groups: Mapping[str, tuple[np.ndarray, np.ndarray]],
    front: tuple[np.ndarray, np.ndarray],
    cost: str = "macs",
    limits: Sequence[float] = (),
    marks: Sequence[Mark] = (),
) -> Figure:
    """Draw every scored subnet as a point.

    Args:
        groups: (cost [n], accuracy [n] in [0, 1]) by name of the search.
        front: (cost [k], accuracy [k]) of the Pareto front, the cheapest first.
        cost: name of the cost; see `raynas.quantities`.
        limits: the searches' bounds on the cost.
        marks: networks with weights of their own, measured on the same images; one style for each label.
    """
    figure, axes = new_figure(4.2)
    for (name, (costs, accuracy)), colour, marker in zip(groups.items(), cycle(PALETTE), cycle("osDv^P")):
        axes.scatter(
            costs,
            accuracy,
            s=14,
            alpha=0.55,
            color=colour,
            marker=marker,
            linewidths=0,
            label=shown(name),
            rasterized=len(costs) > 3000,
        )
    if len(front[0]):
        axes.step(*front, where="post", color=INK, linewidth=1.2, label="Pareto front")
    for limit in limits:
        axes.axvline(limit, color=PALETTE[5], linestyle="--", linewidth=1, label=f"limit: {amount(cost, limit)}")
    looks = dict(zip(dict.fromkeys(mark.label for mark in marks), cycle(product("*PX", PALETTE[3:5])), strict=False))
    named: set[str] = set()
    for mark in marks:
        (marker, colour), label = looks[mark.label], None if mark.label in named else shown(mark.label)
        named.add(mark.label)
        axes.errorbar(
            mark.cost, mark.accuracy, yerr=mark.interval, color=colour, marker=marker, ms=11, ls="none", label=label
        )
    _label_axes(axes, cost)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def fronts(found: Mapping[str, tuple[np.ndarray, np.ndarray]], cost: str = "macs") -> Figure:
    """Draw the fronts of several runs.

    Args:
        found: (cost [k], accuracy [k] in [0, 1]) by name of the run, the cheapest first.
        cost: name of the cost; see `raynas.quantities`.
    """
    figure, axes = new_figure(4.2)
    for (name, points), colour, style in zip(found.items(), cycle(PALETTE), cycle(STYLES)):
        axes.step(*points, where="post", color=colour, linestyle=style, marker=".", label=shown(name))
    _label_axes(axes, cost)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def finished_networks(found: Sequence[tuple[str, float, float | None]]) -> Figure:
    """Draw test accuracies of evaluated networks, one line each: (label, accuracy, 95 % interval)."""
    labels = [wrap(shown(label), 36) for label, _, _ in found]
    figure, axes = new_figure(0.9 + 0.42 * len(found) * max(1, max(map(len, labels)) / 2))
    for row, (_, accuracy, interval) in enumerate(found):
        colour = PALETTE[row % len(PALETTE)]
        axes.errorbar(accuracy, row, xerr=interval, color=colour, marker="o", ms=8, capsize=4, ls="none")
        above: dict[str, Any] = {"xy": (accuracy, row), "xytext": (0, 7), "textcoords": "offset points"}
        axes.annotate(f"{accuracy:.2%}", ha="center", fontsize=8, **above)
    axes.set_yticks(range(len(found)), ["\n".join(lines) for lines in labels])
    axes.set(xlabel="top-1 accuracy on the test split", ylim=(len(found) - 0.5, -0.7))
    axes.margins(x=0.15)
    percent(axes.xaxis)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    return figure


@matplotlib.rc_context(STYLE)
def predictions(groups: Mapping[str, Sequence[tuple[float, float]]], objective: str) -> Figure:
    """Draw measured against predicted values of an objective: (predicted, measured) of each arch, by kind."""
    figure, axes = new_figure(4.2)
    for (name, points), colour, marker in zip(groups.items(), cycle(PALETTE), cycle("os^")):
        predicted, measured = np.array(points).T
        axes.scatter(
            predicted, measured, s=14, alpha=0.55, color=colour, marker=marker, linewidths=0, label=shown(name)
        )
    axes.axline((axes.get_xlim()[0],) * 2, slope=1, color=INK, linewidth=1)
    axes.set(xlabel=f"{shown(objective)}, predicted", ylabel=f"{shown(objective)}, measured")
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def search_progress(curves: Mapping[str, np.ndarray]) -> Figure:
    """Draw the best score so far after each evaluation, one step curve for each search."""
    figure, axes = new_figure(3.6)
    for (name, best), colour, style in zip(curves.items(), cycle(PALETTE), cycle(STYLES)):
        axes.step(np.arange(1, len(best) + 1), best, where="post", color=colour, linestyle=style, label=shown(name))
    axes.set(xlabel="subnets scored", ylabel="best accuracy so far (search split)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    percent(axes.yaxis)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def epoch_curves(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], quantity: str) -> Figure:
    """Draw shares, such as accuracies, by epoch of supernet training: (epochs, shares) by name."""
    figure, axes = new_figure(3.6)
    for (name, (epochs, accuracy)), colour, style in zip(curves.items(), cycle(PALETTE), cycle(STYLES)):
        axes.plot(
            epochs, accuracy, color=colour, linestyle=style, label=shown(name), marker="." if len(epochs) < 30 else None
        )
    axes.set(xlabel="epoch", ylabel=quantity)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    percent(axes.yaxis)
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def attention_distances(networks: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Draw the mean attention distance of every head, block by block: distances in pixels by network."""
    figure, axes = new_figure(3.6)
    for (name, blocks), colour, marker in zip(networks.items(), cycle(PALETTE), cycle("os^")):
        places = [place for place, heads in enumerate(blocks, start=1) for _ in heads]
        distances = [distance for heads in blocks for distance in heads]
        axes.scatter(places, distances, s=22, color=colour, marker=marker, alpha=0.7, linewidths=0, label=shown(name))
    axes.set(xlabel="block", ylabel="mean attention distance (pixels)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    legend(figure)
    return figure


@matplotlib.rc_context(STYLE)
def blocks(arch: Arch, space: Space) -> Figure:
    """Draw an arch block by block: a row of bars for each dimension, outlined up to the space's largest choice."""
    columns, present = block_names(space), present_blocks(arch, space)
    templates = list(dict.fromkeys(d.name.rsplit(".", 1)[1] for d in space.dimensions if ".blocks." in f".{d.name}"))
    widths = [d for d in space.dimensions if d.name.rsplit(".", 1)[-1] == "width"]
    rows = (["width"] if widths else []) + [leaf for leaf in templates if leaf != "kept"]  # outlines show it
    labels = [block.replace("stages.", "").replace("blocks.", "") for block in columns]
    figure = Figure(figsize=(max(4.5, 1.6 + 0.42 * len(columns)), 0.5 + 1.25 * len(rows)), layout="constrained")
    for row, leaf in enumerate(rows):
        axes = figure.add_subplot(len(rows), 1, row + 1)
        top = 0.0
        for column, block in enumerate(columns):
            name = f"{block.rpartition('blocks.')[0]}width" if leaf == "width" else f"{block}.{leaf}"
            if not any(d.name == name for d in space.dimensions):
                continue
            largest = float(space[name].choices[-1])
            acts = block in present
            value = float(arch[name]) if acts and name in arch else 0.0
            top = max(top, largest, value)
            axes.bar(
                column,
                largest,
                width=0.8,
                fill=False,
                edgecolor=PALETTE[5],
                linewidth=0.8,
                linestyle="-" if acts else ":",
            )
            axes.bar(column, value, width=0.8, color=PALETTE[row % len(PALETTE)], linewidth=0)
            if acts:
                axes.text(column, value / 2, f"{value:g}", ha="center", va="center", fontsize=8, color="white")
        axes.set(ylim=(0, top * 1.05), yticks=[], xlim=(-0.6, len(columns) - 0.4))
        axes.set_title(leaf.replace("_", " "))
        axes.set_xticks(range(len(columns)), labels if row == len(rows) - 1 else [])
        axes.spines["left"].set_visible(False)
    axes.set_xlabel("block")
    return figure


@matplotlib.rc_context(STYLE)
def sharing_patterns(patterns: Mapping[str, Sequence[np.ndarray]]) -> Figure:
    """Draw weight-sharing patterns side by side: the groups that each width uses, and the training of each group.

    Args:
        patterns: tables bool [widths, groups] by name, one for each trained path; with several paths, a width's row has
            a lane for each. All patterns have equally many groups.
    """
    groups = len(next(iter(patterns.values()))[0])
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots(2, len(patterns), sharex=True, sharey="row", squeeze=False, height_ratios=(2, 1))
    for (name, paths), above, below in zip(patterns.items(), *axes, strict=True):
        lane = 0.84 / len(paths)
        for path, (table, colour) in enumerate(zip(paths, PALETTE, strict=False)):
            widths, used = np.nonzero(table)
            above.barh(widths + 0.58 + lane * path, 0.9, lane, left=used + 0.55, align="edge", color=colour)
        influence = np.mean(paths, axis=0).T @ (1 / np.arange(1, groups + 1))
        below.bar(np.arange(1, groups + 1), influence, 0.9, color=PALETTE[5])
        below.axhline(1, color=INK, linewidth=1, linestyle="--")
        above.set_title(f"{name}: gap {((influence - 1) ** 2).sum():.2f}")
        below.set_xlabel("group")
    axes[0, 0].set(ylabel="width", ylim=(groups + 0.5, 0.5), xlim=(0.5, groups + 0.5))
    axes[1, 0].set(ylabel="influence")
    for each in (axes[0, 0].yaxis, axes[1, 0].xaxis):
        each.set_major_locator(MaxNLocator(6, integer=True))
    return figure


@matplotlib.rc_context(STYLE)
def rankings(overall: Mapping[str, Estimates], within: Sequence[tuple[float, float, Estimates]] = ()) -> Figure:
    """Draw correlations with intervals: within ranges of MACs above, over all networks below, a line for each pair.

    Args:
        overall: statistics by pair of quantities.
        within: (lower end, upper end, statistics) of each range of MACs.
    """
    heights = [3.2] * bool(within) + [1.0 + 0.55 * len(overall)]
    figure = Figure(figsize=(WIDTH, sum(heights)), layout="constrained")
    *above, below = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    names = list(dict.fromkeys(name for found in (*overall.values(), *(each[2] for each in within)) for name in found))
    for place, (name, colour, marker) in enumerate(zip(names, PALETTE, "osDv^P", strict=False)):
        style: dict[str, Any] = {"color": colour, "marker": marker, "ls": "none", "label": name}
        aside = 0.2 * (place - (len(names) - 1) / 2)
        for axes in above:
            found = [((low + high) / 2 + aside * (high - low), *at[name]) for low, high, at in within if name in at]
            middle, value, lower, upper = np.array(found).reshape(-1, 4).T
            axes.vlines(middle, lower, upper, color=colour)
            axes.plot(middle, value, **style)
        found = [(line + aside, *at[name]) for line, at in enumerate(overall.values()) if name in at]
        middle, value, lower, upper = np.array(found).reshape(-1, 4).T
        below.hlines(middle, lower, upper, color=colour)
        below.plot(value, middle, **style)
    for axes in above:
        axes.axhline(0, color=INK, linewidth=0.8)
        for edge in (within[0][0], *(high for _, high, _ in within)):
            axes.axvline(edge, color=PALETTE[5], linewidth=0.8, alpha=0.4)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set(xlabel="range of multiply-accumulates (MACs)", ylabel="correlation")
        axes.set_title("Accuracy by MACs, within each range")
    below.axvline(0, color=INK, linewidth=0.8)
    below.set_yticks(range(len(overall)), [pair.replace(" by ", "\nby ") for pair in overall])
    below.set(xlabel="correlation", ylim=(len(overall) - 0.5, -0.5))
    below.set_title("Over all ranges")
    figure.legend(*below.get_legend_handles_labels(), loc="outside upper right", ncols=len(names))
    return figure


def _label_axes(axes: Axes, cost: str) -> None:
    axes.set(xlabel=QUANTITIES[cost].axis, ylabel="accuracy on the search split")
    if QUANTITIES[cost].measured is None:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    percent(axes.yaxis)


def block_names(space: Space) -> list[str]:
    """Return the prefixes of all blocks that a space may have: `["blocks.0", "blocks.1"]`."""
    return list(dict.fromkeys(d.name.rpartition(".")[0] for d in space.dimensions if ".blocks." in f".{d.name}"))


def present_blocks(arch: Arch, space: Space) -> list[str]:
    """Return the prefixes of an arch's blocks: within its depth, and not dropped."""
    named = [block for block in block_names(space) if any(key.startswith(f"{block}.") for key in arch)]
    return [block for block in named if arch.get(f"{block}.kept", True)]
