"""What families of stages have in common: `stages.*.depth` or `stages.*.blocks.*.kept` say which blocks run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.space.dimension import Dimension


def depth_or_kept(given: set[str]) -> str:
    """The template by which a space with these templates says which blocks run."""
    return "stages.*.blocks.*.kept" if "stages.*.blocks.*.kept" in given else "stages.*.depth"


def most_blocks(dimensions: Iterable[Dimension]) -> tuple[int, ...]:
    """How many blocks each stage has at most."""
    most: dict[int, int] = {}
    for dimension in dimensions:
        stage, leaf = int(dimension.name.split(".")[1]), dimension.name.rpartition(".")[2]
        most.setdefault(stage, 0)
        if leaf == "depth":
            most[stage] = max(dimension.choices)
        elif leaf == "kept":
            most[stage] += 1
    return tuple(most[stage] for stage in sorted(most))


def running(arch: Mapping[str, Any], stage: int) -> list[int]:
    """The places of the blocks that an arch runs in a stage."""
    depth = f"stages.{stage}.depth"
    if depth in arch:
        return list(range(int(arch[depth])))
    kept = {
        name: value for name, value in arch.items() if name.startswith(f"stages.{stage}.") and name.endswith(".kept")
    }
    return [int(name.split(".")[3]) for name, value in kept.items() if value]
