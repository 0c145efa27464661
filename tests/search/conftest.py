"""Small spaces that can be counted through, and made-up accuracies."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from raynas.space import Arch, Space


def vit(**dimensions: Any) -> Space:
    """A vit space for 8x8 images."""
    blocks = {"heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0], **dimensions.pop("blocks", {})}
    chosen = {"patch_size": [2], "width": [16, 24, 32], "depth": [1, 2], **dimensions, "blocks": blocks}
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 8},
            "dimensions": chosen,
        },
        "small",
    )


@pytest.fixture(scope="session")
def small() -> Space:
    """126 archs: 3 widths x (6 + 36)."""
    return vit()


@pytest.fixture(scope="session")
def medium() -> Space:
    """4,662 archs: 3 widths x (6 + 36 + 216 + 1,296)."""
    return vit(depth=[1, 2, 3, 4])


def accuracy(arch: Mapping[str, Any]) -> float:
    """A made-up accuracy without ties: every gene helps a little, heads more in later blocks, and ids add noise."""
    value = 0.5 + 0.002 * arch["width"] + 0.02 * arch["depth"]
    for name, choice in arch.items():
        if name.endswith("heads"):
            value += 0.02 * choice * (1 + int(name.split(".")[1]))
        elif name.endswith("mlp_ratio"):
            value += 0.01 * choice
    assert isinstance(arch, Arch)
    return value + 0.02 * int(hashlib.sha256(arch.id.encode()).hexdigest()[:8], 16) / 2**32


def drive(search: Any, score: Callable[[Arch], Any] = accuracy, piece: int = 1000) -> list[Arch]:
    """Run a search to its end, `piece` archs at a time; the archs in the order asked."""
    asked = []
    while archs := search.ask(piece):
        asked += archs
        search.tell(archs, [score(arch) for arch in archs])
    return asked
