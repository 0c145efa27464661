"""What an axis of a tensor stands for, in the tables of the families, which name tensors by patterns."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raynas.space import Arch


@dataclass(frozen=True)
class Tiled:
    """Several axes behind one another, each cut alike."""

    axis: tuple[int, int]
    copies: int


Axis = tuple[int, int] | list[int] | Tiled | None
"""How many units act and how many channels a unit has; or exactly these entries; None for an axis that is never cut."""

Table = list[tuple[str, tuple[Axis, ...]]]


def lookup(table: Table, name: str) -> tuple[Axis, ...]:
    """The axes of the first pattern that fits."""
    return next(axes for pattern, axes in table if re.fullmatch(pattern, name))


def middle(side: int, held: int) -> list[int]:
    """The entries in the middle."""
    return list(range((held - side) // 2, (held - side) // 2 + side))


def in_stage(arch: Arch, name: str) -> tuple[int, str, str]:
    """The stage of a tensor, `stages.i.blocks.j.` where it is a block's, and the rest of its name.

    What is in front of the stages counts to the first, and what is behind them to the last.
    """
    last = max(int(key.split(".")[1]) for key in arch)
    stage = int(name.split(".")[1]) if name.startswith("stages.") else 0 if name.startswith("embedding.") else last
    place = re.match(r"stages\.\d+\.blocks\.\d+\.", name)
    return stage, place[0] if place else "", re.sub(r"^stages\.\d+\.(blocks\.\d+\.)?", "", name)
