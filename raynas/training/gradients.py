"""Gradient policies, and the one reduction over workers that each of their gradient sets gets.

A policy deals the passes of a step to named sets. The passes of a set add up their gradients; every set is averaged
over the workers exactly once, in one flat all-reduce; the policy then combines the sets into what the optimiser sees.
A gradient is a list over parameters; None says that nothing used the parameter, and the optimiser leaves it alone.
Nothing is ever added to a gradient in place once it has been collected: two sets never hold the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from raynas.config import shown
from raynas.errors import ConfigError
from raynas.training.samplers import Pass

Gradients = list[Tensor | None]


class GradientPolicy(Protocol):
    """How the gradients of a step's passes become one gradient."""

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        """The name of the set that each pass's gradient is added to; the same names at every step, on every rank.

        It may raise a ConfigError where it cannot do with what the sampler emits: that is told before training.
        """

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        """One gradient from the averaged sets.

        Args:
            sets: by name; what nothing used is None.
            names: of the parameters, in the order of every gradient.
            done: share of the epochs that are finished, from 0 to below 1.
        """


LARGEST, SUBNETS = "largest", "subnets"


def by_role(passes: Sequence[Pass]) -> list[str]:
    """Two sets: the largest subnet's passes, and all others.

    Raises:
        ConfigError: one of them would be empty.
    """
    names = [LARGEST if this.role == "largest" else SUBNETS for this in passes]
    if set(names) != {LARGEST, SUBNETS}:
        raise ConfigError(
            "plan: gradients: this policy tells the largest subnet's gradient from the others': "
            "use a sampler that runs both, such as sandwich"
        )
    return names


class Sum:
    """Every pass counts alike: gradients are added up (the sandwich rule's accumulation).

    Args:
        clip_subnets: largest global norm of what all passes but the largest's add up to; None does not clip it.
    """

    def __init__(self, *, clip_subnets: float | None = None):
        self.clip_subnets = checked_limit(clip_subnets)

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        return ["all"] * len(passes) if self.clip_subnets is None else by_role(passes)

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        if self.clip_subnets is None:
            return sets["all"]
        return added(sets[LARGEST], clipped(sets[SUBNETS], self.clip_subnets))


def checked_limit(limit: float | None) -> float | None:
    """Raises: ConfigError: it is neither a number above 0 nor None."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
        raise ConfigError(f"clip_subnets must be a number above 0, not {shown(limit)}")
    return limit


def added(*gradients: Gradients) -> Gradients:
    """The sum of several gradients, in new tensors where more than one is there; what is in none of them stays None."""
    present = [[one for one in column if one is not None] for column in zip(*gradients, strict=True)]
    return [None if not column else sum(column[1:], start=column[0]) for column in present]


def clipped(gradients: Gradients, limit: float | None) -> Gradients:
    """The gradient scaled down to a global norm, as `torch.nn.utils.clip_grad_norm_` does it, in new tensors."""
    if limit is None:
        return gradients
    norm = nn.utils.get_total_norm([one for one in gradients if one is not None])
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [None if one is None else one * factor for one in gradients]


def scaled(gradients: Gradients, factor: float) -> Gradients:
    """The gradient times a number: to and from the scale of fp16's losses, a power of two, exactly."""
    return gradients if factor == 1 else [None if one is None else one * factor for one in gradients]


@contextmanager
def accumulating(parameters: Sequence[Tensor], gradients: Gradients) -> Iterator[None]:
    """Within, `backward()` adds to `gradients` and to nothing else."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    yield
    for index, parameter in enumerate(parameters):
        gradients[index] = parameter.grad
        parameter.grad = None


def average(
    parameters: Sequence[Tensor], gradients: Gradients, loss: Tensor, all_reduce: Callable[[Tensor], None], workers: int
) -> tuple[Gradients, Tensor]:
    """The mean of one gradient set and of a loss over the workers, by one all-reduce of one flat tensor.

    A parameter that some rank used and others did not counts as zero there; one that no rank used stays None: behind
    the gradients the tensor carries a presence count for every parameter, then the loss.

    Args:
        loss: scalar.
        all_reduce: sums a tensor over all ranks in place.
    """
    if workers == 1:
        return gradients, loss
    present = torch.tensor([float(g is not None) for g in gradients], device=loss.device)
    parts = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    flat = torch.cat([*(part.flatten().float() for part in parts), present, loss.detach().float().reshape(1)])
    all_reduce(flat)
    used = flat[-1 - len(gradients) : -1].tolist()
    flat /= workers
    averaged: Gradients = []
    start = 0
    for parameter, count in zip(parameters, used, strict=True):
        piece = flat[start : start + parameter.numel()]
        start += parameter.numel()
        averaged.append(piece.view_as(parameter).to(parameter.dtype) if count else None)
    return averaged, flat[-1]
