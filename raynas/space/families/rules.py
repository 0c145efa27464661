"""The form of a family's vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raynas.config import Config, Location

if TYPE_CHECKING:
    from raynas.space.arch import Arch
    from raynas.space.space import Space


@dataclass(frozen=True)
class Rule:
    """What the choices of one dimension must be.

    Attributes:
        type: `int`, `float` or `bool`.
        minimum: the smallest legal value; a float must also be above 0.
        maximum: the largest: far beyond any use, so that costs always fit 64 bits.
        descending: True where a smaller value costs more (patch size); choices stand in ascending cost.
    """

    type: type
    minimum: float
    maximum: float
    descending: bool = False


@dataclass(frozen=True)
class Family:
    """A family's vocabulary.

    Attributes:
        constants: model of what is fixed for a whole space.
        dimensions: every dimension's template and rule, e.g. `{"blocks.*.heads": Rule(int, 1, 1024)}`; all required.
        resolve: fills in constants that default to something of the space, given constants and choices by template.
            It runs once, when a space is read: a forward pass may never look at what a space could have been.
        check: yields what the family cannot build: the place in the space file, and what is wrong.
        scale: the arch with its widths multiplied by a factor, as a one-point space (see `Space.scaled`).
    """

    constants: type[Config]
    dimensions: dict[str, Rule]
    resolve: Callable[[Any, dict[str, tuple]], Any]
    check: Callable[[Space], Iterator[tuple[Location, str]]]
    scale: Callable[[Arch, float], Arch]
