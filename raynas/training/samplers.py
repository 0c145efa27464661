"""Subnet samplers: which archs one training step runs.

A sampler is a function `(space, rng, losses, **options) -> list of Pass`. It draws from its own numpy Generator alone,
so that the same seed gives the same archs on every rank, and the Generator's state is all that a checkpoint must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from raynas.config import shown
from raynas.errors import ConfigError
from raynas.training.draws import Budget, draw

if TYPE_CHECKING:
    import numpy as np

    from raynas.nets.sharing import Side
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
        side: the path through the weights where the sharing pattern has two; the loop sets it (see `on_sides`).
    """

    name: str
    role: Role
    archs: tuple[Arch, ...]
    side: Side | None = None


def on_sides(passes: Sequence[Pass], sides: Sequence[Side | None]) -> list[Pass]:
    """Every pass once on each path of the weight-sharing pattern; the largest, which is all of it, only once."""
    if len(sides) == 1:
        return list(passes)
    return [
        this if this.role == "largest" else replace(this, name=f"{this.name}.{side}", side=side)
        for this in passes
        for side in (sides[:1] if this.role == "largest" else sides)
    ]


def mixed(
    space: Space,
    rng: np.random.Generator,
    losses: Losses,
    *,
    archs: int,
    uniform_over: Uniform = "dimensions",
    align: Budget | None = None,
    within: Budget | None = None,
    dealt: bool = False,
) -> list[Pass]:
    """Several random subnets share one pass, each on its part of the batch (ViT-ResNAS's N_a).

    Rows are interleaved (row i runs `archs[i % len(archs)]`), so that each arch sees both kinds of mixing where halves
    of a batch differ. For the other options see `raynas.training.draws`.

    Args:
        archs: how many; with `per_rank` on every worker, else the same on all.

    Raises:
        ConfigError: there are none.
    """
    if type(archs) is not int or archs < 1:
        raise ConfigError(f"sampler 'mixed': archs must be a whole number from 1 on, not {shown(archs)}")
    return [Pass("mixed", "mixed", tuple(draw(space, rng, archs, uniform_over, align, within, dealt)))]


def single_path(
    space: Space,
    rng: np.random.Generator,
    losses: Losses,
    *,
    uniform_over: Uniform = "dimensions",
    align: Budget | None = None,
    within: Budget | None = None,
) -> list[Pass]:
    """One random subnet a step (AutoFormer; SPOS; with `align` ViTAS); for its options see `raynas.training.draws`."""
    return [Pass("random", "random", tuple(draw(space, rng, 1, uniform_over, align, within)))]


def sandwich(
    space: Space,
    rng: np.random.Generator,
    losses: Losses,
    *,
    random: int = 2,
    uniform_over: Uniform = "dimensions",
    align: Budget | None = None,
    within: Budget | None = None,
    dealt: bool = False,
) -> list[Pass]:
    """The sandwich rule: the largest subnet, the smallest, `random` drawn ones, then one update (S3; BigNAS).

    The other options say how the random ones are drawn; see `raynas.training.draws`.
    """
    drawn = draw(space, rng, random, uniform_over, align, within, dealt)
    return [
        Pass("largest", "largest", (space.largest(),)),
        Pass("smallest", "smallest", (space.smallest(),)),
        *(Pass(f"random.{i}", "random", (arch,)) for i, arch in enumerate(drawn)),
    ]


SAMPLERS = {"single_path": single_path, "sandwich": sandwich, "mixed": mixed}
