"""The vocabulary of the dummy family: one dimension, `width`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from raynas.config import Location
from raynas.space.rules import CommonConstants, Family, Rule, scaled_widths

if TYPE_CHECKING:
    from raynas.space import Arch, Space


def pixels(space: Space) -> int:
    """Return the number of values of an image."""
    return space.channels * space.input_size[0] * space.input_size[1]


def _resolve(constants: CommonConstants, dimensions: tuple[Any, ...]) -> CommonConstants:
    return constants


def _check(space: Space) -> Iterator[tuple[Location, str]]:
    if space.constants.token_head:
        yield ("constants", "token_head"), "the dummy family has no tokens"


def _scale(arch: Arch, factor: float) -> Arch:
    return arch.space.off_grid(scaled_widths(arch, factor))


FAMILY = Family(
    constants=CommonConstants,
    dimensions={"width": Rule(int, 1, 2**15)},
    resolve=_resolve,
    check=_check,
    scale=_scale,
)
