"""Gradient policies, and the averaging of gradient sets over workers.

A policy assigns the passes of a step to named sets. The gradients of a set's passes are added; every set is averaged
over the workers exactly once, in one flat all-reduce; the policy then combines the sets into the optimiser's gradient.
A gradient is a list over parameters; None means that no pass used the parameter, and the optimiser skips it. Collected
gradients are never changed in place, and two sets never hold the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from raynas.errors import ConfigError
from raynas.text import shown
from raynas.training.samplers import Pass
from raynas.user_code import kind

Gradients = list[Tensor | None]


class GradientPolicy(Protocol):
    """A rule that combines the gradients of a step's passes into one."""

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        """Return the name of each pass's gradient set; the same names at every step, on every rank.

        It may raise a ConfigError, reported before training, if it does not work with the sampler's passes.
        """

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        """Combine the averaged sets into one gradient.

        Args:
            sets: gradients by name; None for unused parameters.
            names: the parameters' names, in the order of every gradient.
            done: share of finished epochs, from 0 to below 1.
        """


def check_gradient(combined: Gradients, parameters: Sequence[Tensor]) -> None:
    """Refuse what a policy combined if it is no gradient of the parameters."""
    must = f"plan.gradients: combine(sets, names, done) must return a list of {len(parameters)} gradients or None"
    if not isinstance(combined, list | tuple) or len(combined) != len(parameters):
        raise ConfigError(f"{must}; it returned {kind(combined)}")
    for one, parameter in zip(combined, parameters, strict=True):
        if one is not None and (not isinstance(one, Tensor) or one.shape != parameter.shape):
            raise ConfigError(f"{must}, each of its parameter's shape {list(parameter.shape)}; one is {kind(one)}")


LARGEST, SUBNETS = "largest", "subnets"


def by_role(passes: Sequence[Pass]) -> list[str]:
    """Assign passes to two sets: the largest subnet's and all others'.

    Raises:
        ConfigError: a set would be empty.
    """
    names = [LARGEST if this.role == "largest" else SUBNETS for this in passes]
    if set(names) != {LARGEST, SUBNETS}:
        raise ConfigError(
            "plan: gradients: this policy tells the largest subnet's gradient from the others': "
            "use a sampler that runs both, such as sandwich"
        )
    return names


class Sum:
    """The sum of all gradients (the sandwich rule's accumulation).

    Args:
        clip_subnets: largest global norm of the sum of all passes except the largest's; None does not clip it.
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
    """Return a clipping limit; refuse what is neither a number above 0 nor None."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
        raise ConfigError(f"clip_subnets must be a number above 0, not {shown(limit)}")
    return limit


def added(*gradients: Gradients) -> Gradients:
    """Add gradients, in new tensors if there are several for a parameter; parameters without any stay None."""
    present = [[one for one in column if one is not None] for column in zip(*gradients, strict=True)]
    return [None if not column else sum(column[1:], start=column[0]) for column in present]


def clipped(gradients: Gradients, limit: float | None) -> Gradients:
    """Scale a gradient down to a global norm, like `torch.nn.utils.clip_grad_norm_`, in new tensors."""
    if limit is None:
        return gradients
    norm = nn.utils.get_total_norm([one for one in gradients if one is not None])
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    return [None if one is None else one * factor for one in gradients]


def scaled(gradients: Gradients, factor: float) -> Gradients:
    """Multiply a gradient by a factor: exact for the loss scale of fp16, a power of two."""
    return gradients if factor == 1 else [None if one is None else one * factor for one in gradients]


@contextmanager
def accumulating(parameters: Sequence[Tensor], gradients: Gradients) -> Iterator[None]:
    """Make `backward()` add to `gradients` only, within the context."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    yield
    for index, parameter in enumerate(parameters):
        gradients[index] = parameter.grad
        parameter.grad = None


def average(
    parameters: Sequence[Tensor], gradients: Gradients, loss: Tensor, all_reduce: Callable[[Tensor], None], workers: int
) -> tuple[Gradients, Tensor]:
    """Average one gradient set and a loss over the workers, by one all-reduce of one flat tensor.

    A parameter that only some ranks used counts as zero on the others; one that no rank used stays None. To tell them
    apart, the tensor holds a presence count for every parameter after the gradients, then the loss.

    Args:
        parameters: the parameters.
        gradients: this rank's gradient set.
        loss: scalar.
        all_reduce: sums a tensor over all ranks in place.
        workers: number of ranks.
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
