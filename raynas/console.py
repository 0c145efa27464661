"""What commands print: sizes, tables and results as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raynas.costs import breakdown, cost, span
from raynas.reports.collect import HOW, collect
from raynas.results import RunDir
from raynas.space import Arch, load_arch, load_space
from raynas.space.load import describes_arch
from raynas.statistics import mean_interval

_COSTS = {"macs": "MACs", "paper_macs": "MACs as papers count", "params": "parameters"}


def describe_cost(arch: Arch) -> str:
    """MACs and parameters in words."""
    costs = cost(arch.space, [arch])
    return f"{int(costs['macs'][0]):,} MACs, {int(costs['params'][0]):,} parameters"


def cost_table(name: str) -> str:
    """The costs of a space's extremes, or of every part of an arch.

    Args:
        name: a shipped space or arch, or a file of either.

    Raises:
        ConfigError: there is no such file, or it is wrong.
    """
    if describes_arch(name):
        return _arch_table(load_arch(name))
    space = load_space(name)
    height, width = space.input_size
    lines = [
        f"space {space.name}: {space.cardinality():,} archs of family {space.family}",
        f"images {height} x {width}, {space.channels} channel(s); {space.classes} classes",
        "",
        _line("", "least", "most"),
    ]
    lines += [_line(_COSTS[name], *extremes) for name, extremes in span(space).items()]
    return "\n".join(lines)


def finished_lines(run: RunDir) -> list[str]:
    """One line for each kind of finished network of a run: its size, and its accuracy on the test split."""
    lines = []
    for found in collect(run).finished:
        tested = found.test_accuracy()
        if tested is not None:
            name = f"{found.label}, {HOW[found.how]}"
            name += "" if found.size is None else f", {found.size[0]} x {found.size[1]} pixels"
            lines.append(f"{name:<36}{found.macs or 0:>12,} MACs   {_spread(*tested, len(found.tested))}")
    return lines


def retrained_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line for each architecture that was retrained: accuracy on the search split over its seeds, and folders."""
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


def _arch_table(arch: Arch) -> str:
    costs = cost(arch.space, [arch])
    rows = [*breakdown(arch.space, arch), {"term": "total", **{name: int(costs[name][0]) for name in _COSTS}}]
    lines = [f"arch {arch.id} of space {arch.space.name}", "", _line("", *_COSTS.values())]
    return "\n".join([*lines, *(_line(row["term"], *(row[name] for name in _COSTS)) for row in rows)])


def _line(name: str, *cells: int | str) -> str:
    return f"{name:<24}" + "".join(f"{cell:>22,}" if isinstance(cell, int) else f"{cell:>22}" for cell in cells)
