"""Tables of costs as text."""

from __future__ import annotations

from raynas.costs import breakdown, cost, span
from raynas.space import Arch, load_arch, load_space
from raynas.space.load import describes_arch

_COSTS = {"macs": "MACs", "paper_macs": "MACs as papers count", "params": "parameters"}


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


def _arch_table(arch: Arch) -> str:
    costs = cost(arch.space, [arch])
    rows = [*breakdown(arch.space, arch), {"term": "total", **{name: int(costs[name][0]) for name in _COSTS}}]
    lines = [f"arch {arch.id} of space {arch.space.name}", "", _line("", *_COSTS.values())]
    return "\n".join([*lines, *(_line(row["term"], *(row[name] for name in _COSTS)) for row in rows)])


def _line(name: str, *cells: int | str) -> str:
    return f"{name:<24}" + "".join(f"{cell:>22,}" if isinstance(cell, int) else f"{cell:>22}" for cell in cells)
