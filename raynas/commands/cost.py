"""Print MACs and parameters: the extremes of a space, or every part of an arch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raynas.space import Arch, Space

EXAMPLES = "raynas cost autoformer/tiny"

_COSTS = {"macs": "MACs", "paper_macs": "MACs as papers count", "params": "parameters"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="a shipped space or arch, or a YAML file")


def run(options: argparse.Namespace) -> None:
    from raynas.space import load_arch, load_space
    from raynas.space.load import describes_arch

    name = options.name
    print(arch_table(load_arch(name)) if describes_arch(name) else space_table(load_space(name)))


def space_table(space: Space) -> str:
    """Return the least and the most that archs of a space cost."""
    from raynas.costs import span

    height, width = space.input_size
    lines = [
        f"space {space.name}: {space.cardinality():,} archs of family {space.family}",
        f"images {height} x {width}, {space.channels} channel(s); {space.classes} classes",
        "",
        _line("", "least", "most"),
    ]
    return "\n".join([*lines, *(_line(_COSTS[name], *extremes) for name, extremes in span(space).items())])


def arch_table(arch: Arch) -> str:
    """Return the costs of every part of an arch."""
    from raynas.costs import breakdown, cost

    costs = cost(arch.space, [arch])
    rows = [*breakdown(arch.space, arch), {"term": "total", **{name: int(costs[name][0]) for name in _COSTS}}]
    lines = [f"arch {arch.id} of space {arch.space.name}", "", _line("", *_COSTS.values())]
    return "\n".join([*lines, *(_line(row["term"], *(row[name] for name in _COSTS)) for row in rows)])


def _line(name: str, *cells: int | str) -> str:
    return f"{name:<24}" + "".join(f"{cell:>22,}" if isinstance(cell, int) else f"{cell:>22}" for cell in cells)
