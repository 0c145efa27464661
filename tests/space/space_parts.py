"""Small spaces whose archs can be counted by hand."""

from __future__ import annotations

from typing import Any

from raynas.config import Config
from raynas.space import Space


class NoConstants(Config):
    """A family without constants; here, and not in a `conftest`, since pickling needs a name that is its alone."""


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
