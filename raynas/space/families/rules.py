"""The form of a family's vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raynas.config import Config

if TYPE_CHECKING:
    from raynas.space.arch import Arch
    from raynas.space.space import Space


@dataclass(frozen=True)
class Rule:
    """What the choices of one dimension must be.

    Attributes:
        type: `int`, `float` or `bool`.
        minimum: the smallest legal value.
        descending: True where a smaller value costs more (patch size); choices stand in ascending cost.
    """

    type: type
    minimum: float = 0
    descending: bool = False


@dataclass(frozen=True)
class Family:
    """A family's vocabulary.

    Attributes:
        constants: model of what is fixed for a whole space.
        dimensions: every dimension's template and rule, e.g. `{"blocks.*.heads": Rule(int, 1)}`; all are required.
        resolve: fills in constants that default to something of the space, given constants and choices by template.
            It runs once, when a space is read: a forward pass may never look at what a space could have been.
        check: raises `ValueError` for a space that the family cannot build.
        scale: the arch with its widths multiplied by a factor, as a one-point space (see `Space.scaled`).
    """

    constants: type[Config]
    dimensions: dict[str, Rule]
    resolve: Callable[[Any, dict[str, tuple]], Any]
    check: Callable[[Space], None]
    scale: Callable[[Arch, float], Arch]
