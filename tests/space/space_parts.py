"""Small spaces whose archs can be counted by hand."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import pytest

from raynas.config import Config
from raynas.space import Space
from raynas.space.families import FAMILIES
from raynas.space.rules import Family


class NoConstants(Config):
    """A family without constants; here, and not in a `conftest`, since pickling needs a name that is its alone."""


def toy(family: str, dimensions: dict[str, Any]) -> Space:
    """A space of a toy family."""
    return Space.from_dict({"family": family, "input": {"size": 8}, "classes": 2, "dimensions": dimensions}, family)


def add_family(
    monkeypatch: pytest.MonkeyPatch, name: str, family: Family, terms: Callable[[Space], Iterable[Any]] | None = None
) -> None:
    """Register a family for the length of a test: a package with a module `space` and, given terms, a module `cost`."""
    package = f"toy_families.{name}"
    for module, attributes in (("space", {"FAMILY": family}), ("cost", {"terms": terms} if terms else None)):
        if attributes is not None:
            made = ModuleType(f"{package}.{module}")
            vars(made).update(attributes)
            monkeypatch.setitem(sys.modules, f"{package}.{module}", made)
    monkeypatch.setitem(FAMILIES, name, package)


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
