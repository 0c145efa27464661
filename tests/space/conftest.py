"""Toy families."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from raynas.space import Choice
from raynas.space.codes import CodedSpace
from raynas.space.rules import Family, Rule
from tests.space.space_parts import NoConstants, add_family


def _unscaled(constants: Any, arch: Mapping[str, Choice], factor: float) -> tuple[Any, dict[str, Choice]]:
    raise NotImplementedError


@pytest.fixture
def toy_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families of blocks with one choice each: as many as a depth says (`shifting`), or kept anywhere (`anywhere`)."""

    def family(dimensions: dict[str, Rule]) -> Family:
        def nothing_wrong(space: CodedSpace) -> Iterator[tuple[tuple[str | int, ...], str]]:
            return iter(())

        return Family(NoConstants, dimensions, lambda constants, dimensions: constants, nothing_wrong, _unscaled)

    block = {"blocks.*.op": Rule(int, 0, 9)}
    add_family(monkeypatch, "shifting", family({"depth": Rule(int, 0, 200), **block}))
    add_family(monkeypatch, "anywhere", family({"blocks.*.kept": Rule(bool, 0, 1), **block}))
