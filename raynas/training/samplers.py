"""Subnet samplers: which archs one training step runs.

A sampler is a function `(space, rng, losses, **options) -> list of Pass`. It draws from its own numpy Generator alone,
so that the same seed gives the same archs on every rank, and the Generator's state is all that a checkpoint must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

    from raynas.space import Arch, Space
    from raynas.space.space import Uniform

Role = Literal["largest", "smallest", "random", "mixed"]

Losses = Callable[[Sequence["Arch"]], list[float]]
"""The loss of each candidate on this step's first micro-batch, without gradients, averaged over workers."""


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of a step.

    Attributes:
        name: unique within the step; an objective finds an earlier pass's logits by it.
        role: what the pass is to objectives and gradient policies.
        archs: one arch, or for the role `mixed` several that share the batch (row i runs `archs[i % len(archs)]`).
    """

    name: str
    role: Role
    archs: tuple[Arch, ...]


def single_path(
    space: Space, rng: np.random.Generator, losses: Losses, *, uniform_over: Uniform = "dimensions"
) -> list[Pass]:
    """One uniformly drawn subnet a step (AutoFormer; SPOS)."""
    return [Pass("random", "random", (space.sample(rng, uniform_over),))]


def sandwich(
    space: Space, rng: np.random.Generator, losses: Losses, *, random: int = 2, uniform_over: Uniform = "dimensions"
) -> list[Pass]:
    """The sandwich rule: the largest subnet, the smallest, `random` drawn ones, then one update (S3; BigNAS)."""
    drawn = space.decode(space.sample_codes(rng, random, uniform_over)) if random else []
    return [
        Pass("largest", "largest", (space.largest(),)),
        Pass("smallest", "smallest", (space.smallest(),)),
        *(Pass(f"random.{i}", "random", (arch,)) for i, arch in enumerate(drawn)),
    ]


SAMPLERS = {"single_path": single_path, "sandwich": sandwich}
