"""Subnet samplers, which draw the archs of one training step.

A sampler is a function `(space, rng, losses, **options) -> list of Pass`. It draws from its own numpy Generator only,
so that the same seed gives the same archs on every rank and a checkpoint only needs the Generator's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from raynas.errors import ConfigError
from raynas.space import Arch, Space
from raynas.space.codes import Uniform
from raynas.text import shown
from raynas.training.attentive import Attentive, draw_attentively, read_attentive
from raynas.training.draws import DRAW_OPTIONS, Budget, check_draw, draw, read_budget
from raynas.user_code import kind

if TYPE_CHECKING:
    from raynas.nets.sharing import Side

Role = Literal["largest", "smallest", "random", "mixed"]

Losses = Callable[[Sequence["Arch"]], list[float]]
"""The loss of each candidate on this step's first micro-batch, without gradients, averaged over workers."""


@dataclass(frozen=True)
class Pass:
    """One forward and backward pass of a step.

    Attributes:
        name: unique within the step; the key of the pass's logits for objectives.
        role: role of the pass for objectives and gradient policies.
        archs: one arch, or for the role `mixed` several that share the batch (row i runs `archs[i % len(archs)]`).
        side: the path through the weights if the sharing pattern has two; set by the loop (see `on_sides`).
    """

    name: str
    role: Role
    archs: tuple[Arch, ...]
    side: Side | None = None


def on_sides(passes: Sequence[Pass], sides: Sequence[Side | None]) -> list[Pass]:
    """Repeat every pass on each path of the weight-sharing pattern, except the largest, which uses all weights."""
    if len(sides) == 1:
        return list(passes)
    return [
        this if this.role == "largest" else replace(this, name=f"{this.name}.{side}", side=side)
        for this in passes
        for side in (sides[:1] if this.role == "largest" else sides)
    ]


def check_emitted(passes: Sequence[Pass]) -> None:
    """Refuse what is no list of passes with archs, known roles and names of their own, or an empty one."""
    if not isinstance(passes, list | tuple):
        raise ConfigError(f"plan: a sampler must return a list of Pass; it returned {kind(passes)}")
    for this in passes:
        must = "plan: a sampler must return a list of Pass, each with archs"
        if not isinstance(this, Pass):
            raise ConfigError(f"{must}; in it is {kind(this)}")
        if not isinstance(this.name, str):
            raise ConfigError(f"{must} and a name; a name is {kind(this.name)}")
        if not isinstance(this.archs, list | tuple) or not this.archs:
            raise ConfigError(f"{must}; the archs are {kind(this.archs)}")
        for arch in this.archs:
            if not isinstance(arch, Arch):
                raise ConfigError(f"{must}; among the archs is {kind(arch)}")
        if not isinstance(this.role, str) or this.role not in get_args(Role):
            raise ConfigError(f"plan: a pass has the role {shown(this.role)}: it is one of {', '.join(get_args(Role))}")
    if not passes:
        raise ConfigError("plan: the sampler emitted no pass")
    names = [this.name for this in passes]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"plan: the sampler emitted two passes named {shown(twice)}: give each a name of its own")


def check_rows(this: Pass, images: int) -> None:
    """Refuse a micro-batch that has no image for each arch of a pass."""
    if len(this.archs) > images:
        raise ConfigError(
            f"plan: {len(this.archs)} archs share a micro-batch of {images} images, and some would get none: "
            "let the sampler emit fewer, or enlarge recipe.batch_size"
        )


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
    """Draw several random subnets that share one pass, each on its part of the batch (ViT-ResNAS's N_a).

    Rows are interleaved (row i runs `archs[i % len(archs)]`), so that each arch sees both kinds of mixing if halves of
    a batch differ. For the other options see `raynas.training.draws`.

    Args:
        archs: number of subnets; different ones on each worker with `per_rank`, else the same on all.

    Raises:
        ConfigError: `archs` is not a whole number from 1.
    """
    _check_count("archs", archs)
    return [Pass("mixed", "mixed", tuple(draw(space, rng, archs, uniform_over, align, within, dealt)))]


def single_path(
    space: Space,
    rng: np.random.Generator,
    losses: Losses,
    *,
    uniform_over: Uniform = "dimensions",
    align: Budget | None = None,
    within: Budget | None = None,
    attentive: Attentive | None = None,
) -> list[Pass]:
    """Draw one random subnet for each step (AutoFormer; SPOS; with `align` ViTAS).

    For the options see `raynas.training.draws`; for `attentive` see `raynas.training.attentive`.
    """
    if attentive is not None:
        drawn = draw_attentively(space, rng, losses, 1, attentive, uniform_over)
    else:
        drawn = draw(space, rng, 1, uniform_over, align, within)
    return [Pass("random", "random", tuple(drawn))]


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
    attentive: Attentive | None = None,
) -> list[Pass]:
    """Apply the sandwich rule: the largest subnet, the smallest and `random` drawn ones in one update (S3; BigNAS).

    For the options of the random ones see `raynas.training.draws`; for `attentive` (AttentiveNAS) see
    `raynas.training.attentive`.

    Args:
        random: number of random subnets.

    Raises:
        ConfigError: `random` is not a whole number from 0.
    """
    _check_count("random", random)
    if attentive is not None:
        drawn = draw_attentively(space, rng, losses, random, attentive, uniform_over)
    else:
        drawn = draw(space, rng, random, uniform_over, align, within, dealt)
    return [
        Pass("largest", "largest", (space.largest(),)),
        Pass("smallest", "smallest", (space.smallest(),)),
        *(Pass(f"random.{i}", "random", (arch,)) for i, arch in enumerate(drawn)),
    ]


SAMPLERS = {"single_path": single_path, "sandwich": sandwich, "mixed": mixed}

COUNTS = {"random": 0, "archs": 1}
"""Options of our samplers that count archs, with their minimum."""

MOST = 10_000
"""The most archs of a step, far more than it can run."""


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options of one of our samplers and return them with budgets as numbers, so that records compare.

    Raises:
        ConfigError: an option is wrong for any space.
    """
    for name in COUNTS.keys() & options:
        _check_count(name, options[name])
    check_draw(**{name: options[name] for name in DRAW_OPTIONS if name in options})
    budgets = [name for name in ("align", "within") if options.get(name) is not None]
    read: dict[str, Any] = {name: read_budget(name, options[name]) for name in budgets}
    if options.get("attentive") is not None:
        if options.get("dealt") or budgets:
            raise ConfigError("attentive draws archs in its own way: leave out align, within and dealt")
        read["attentive"] = read_attentive(options["attentive"])
    return {**options, **read}


def _check_count(name: str, value: Any) -> None:
    least = COUNTS[name]
    if type(value) is not int or not least <= value <= MOST:
        raise ConfigError(f"{name} must be a whole number from {least} to {MOST:,}, not {shown(value)}")
