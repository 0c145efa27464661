"""The supernet of the dummy family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear
from raynas.nets.sharing import Side, pattern
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Space
from tests.families.dummy.space import pixels


class DummySupernet(Supernet):
    """A linear layer of elastic width over all pixels, and a classifier."""

    def __init__(self, space: Space):
        super().__init__(space)
        width = int(max(space["width"].choices))
        self.pixels, self.classes = Channels.first(pixels(space)), Channels.first(space.classes)
        self.body = ElasticLinear(pixels(space), width)
        self.head, self.width = ElasticLinear(width, space.classes), width
        self.settle()

    def acting(self, arch: Arch, side: Side | None = None) -> Channels:
        """Return the active channels."""
        return pattern(self.space.constants, side)(int(arch["width"]), self.width)

    def run(self, x: Tensor, acting: Channels, paths: Tensor | None, patches: bool) -> Tensor:
        """Map images to logits."""
        hidden = self.body(x.flatten(1), self.pixels, acting).relu()
        return self.head(self.drop_features(hidden), acting, self.classes)

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        """Return the active part of an arch's parameters by name."""
        width = self.acting(self._arch(arch), side)
        parts = {"body": self.body.select(self.pixels, width), "head": self.head.select(width, self.classes)}
        return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return no tables."""
        return {}

    def places(self, arch: Arch) -> list[int]:
        """Return no blocks."""
        return []

    def ramp_length(self) -> int:
        """Return the steps of a ramp that drops nothing."""
        return 1

    def no_weight_decay(self) -> set[str]:
        """Return no names."""
        return set()


SUPERNET = DummySupernet
