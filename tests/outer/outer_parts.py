"""What the tests of outer loops share: a small space, and objectives whose optimum is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raynas.space import Arch, Space


def vit(**dimensions: Any) -> Space:
    """A vit space of one arch for 8 x 8 images, but for the dimensions given: `vit(width=[16, 32])`."""
    fixed: dict[str, Any] = {"patch_size": [4], "width": [64], "depth": [2], "heads": [2], "mlp_ratio": [2.0]}
    chosen = {**fixed, **dimensions}
    blocks = {leaf: chosen.pop(leaf) for leaf in ("heads", "mlp_ratio")}
    definition = {
        "family": "vit",
        "input": {"size": 8, "channels": 1},
        "classes": 10,
        "constants": {"head_dim": 8},
        "dimensions": {**chosen, "blocks": chosen.pop("blocks", blocks)},
    }
    return Space.from_dict(definition, "small")


class Bowl:
    """An objective with one optimum: a parabola in each kind of dimension, of its mean over the blocks.

    Args:
        best: the best value by leaf.
        scale: what is one step away from it, by leaf.
        noise: standard deviation of the accuracies.
    """

    def __init__(self, best: Mapping[str, float], scale: Mapping[str, float], noise: float = 0.0):
        self.best, self.scale, self.noise = best, scale, noise
        self.calls: list[int] = []
        self.archs: list[Arch] = []

    def __call__(self, iteration: int, space: Space, archs: Sequence[Arch]) -> list[float]:
        self.calls.append(iteration)
        self.archs += archs
        rng = np.random.default_rng(iteration)
        return [1 - self.error(arch) + self.noise * rng.standard_normal() for arch in archs]

    def error(self, arch: Arch) -> float:
        """Top-1 error of an arch: 20 %, and 0.2 points for the square of each distance in steps."""
        error = 0.2
        for leaf, best in self.best.items():
            values = np.array([value for name, value in arch.items() if name.rpartition(".")[2] == leaf], dtype=float)
            error += 0.002 * float((((values - best) / self.scale[leaf]) ** 2).mean())
        return error
