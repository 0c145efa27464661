"""Results as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raynas.comparison import mean_interval
from raynas.costs import cost
from raynas.reports.collect import HOW, collect
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.space import Arch


def describe_cost(arch: Arch) -> str:
    """Return MACs and parameters in words."""
    costs = cost(arch.space, [arch])
    return f"{int(costs['macs'][0]):,} MACs, {int(costs['params'][0]):,} parameters"


def finished_lines(run: Run) -> list[str]:
    """Return one line for each kind of finished network of a run: its size, and its accuracy on the test split."""
    lines = []
    for found in collect(run).finished:
        tested = found.test_accuracy()
        if tested is not None:
            name = f"{found.label}, {HOW[found.how]}"
            name += "" if found.size is None else f", {found.size[0]} x {found.size[1]} pixels"
            lines.append(f"{name:<36}{found.macs or 0:>12,} MACs   {_spread(*tested, len(found.tested))}")
    return lines


def retrained_lines(rows: Sequence[Row]) -> list[str]:
    """Return one line for each retrained architecture: accuracy on the search split over its seeds, and folders."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["arch"], []).append(row)
    lines = []
    for arch, found in groups.items():
        measured = [row["accuracy"] for row in found if row["accuracy"] is not None]
        text = "the search split was trained on, and measures nothing"
        if measured:
            text = f"{_spread(*mean_interval(measured), len(measured))} on the search split"
        lines.append(f"{arch}, {HOW[found[0]['how']]}: {text}")
    return lines


def _spread(mean: float, interval: float | None, count: int) -> str:
    if interval is None:
        return f"{mean:.2%}"
    return f"{mean:.2%} ± {interval:.2%} (95 %, {count} seeds{', which say little' if count == 2 else ''})"
