"""Small spaces whose archs can be counted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from space_parts import NoConstants

from raynas.space import Arch, Space
from raynas.space.families import FAMILIES
from raynas.space.families.rules import Family, Rule


def _unscaled(arch: Arch, factor: float) -> Arch:
    raise NotImplementedError


@pytest.fixture
def toy_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Families of blocks with one choice each: as many as a depth says (`shifting`), or kept anywhere (`anywhere`)."""

    def family(dimensions: dict[str, Rule]) -> Family:
        def nothing_wrong(space: Space) -> Iterator[tuple[tuple[str | int, ...], str]]:
            return iter(())

        return Family(NoConstants, dimensions, lambda constants, choices: constants, nothing_wrong, _unscaled)

    block = {"blocks.*.op": Rule(int, 0, 9)}
    monkeypatch.setitem(FAMILIES, "shifting", family({"depth": Rule(int, 0, 200), **block}))
    monkeypatch.setitem(FAMILIES, "anywhere", family({"blocks.*.kept": Rule(bool, 0, 1), **block}))


def toy(family: str, dimensions: dict[str, Any]) -> Space:
    """A space of a toy family."""
    return Space.from_dict({"family": family, "input": {"size": 8}, "classes": 2, "dimensions": dimensions}, family)


def vit(**dimensions: Any) -> Space:
    """A vit space of 1 to 3 blocks: 2 x 2 x (4 + 4^2 + 4^3) = 336 archs, unless said otherwise."""
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 16, "channels": 1},
            "classes": 3,
            "constants": {"head_dim": 4},
            "dimensions": {
                "patch_size": [8, 4],
                "width": [8, 12],
                "depth": [1, 2, 3],
                "blocks": {"heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
                **dimensions,
            },
        },
        "vit",
    )
