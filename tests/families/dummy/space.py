"""The vocabulary of the dummy family: one dimension, `width`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.rules import CommonConstants, Family, Rule, check_no_distillation_token


def pixels(space: CodedSpace) -> int:
    """Return the number of values of an image."""
    return space.channels * space.input_size[0] * space.input_size[1]


def _resolve(constants: CommonConstants, dimensions: tuple[Any, ...]) -> CommonConstants:
    return constants


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    yield from check_no_distillation_token(space)
    if space.constants.token_head:
        yield ("constants", "token_head"), "the dummy family has no tokens"


FAMILY = Family(
    constants=CommonConstants,
    dimensions={"width": Rule(int, 1, 2**15)},
    resolve=_resolve,
    check=_check,
)
