"""Gradient policies, and the one reduction over workers that each of their gradient sets gets.

A policy deals the passes of a step to named sets. The passes of a set add up their gradients; every set is averaged
over the workers exactly once, in one flat all-reduce; the policy then combines the sets into what the optimiser sees.
A gradient is a list over parameters; None says that nothing used the parameter, and the optimiser leaves it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from raynas.training.samplers import Pass

Gradients = list[Tensor | None]


class GradientPolicy(Protocol):
    """How the gradients of a step's passes become one gradient."""

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        """The name of the set that each pass's gradient is added to; the same names at every step, on every rank."""

    def combine(self, sets: Mapping[str, Gradients]) -> Gradients:
        """One gradient from the averaged sets."""


class Sum:
    """Every pass counts alike: gradients are added up (the sandwich rule's accumulation)."""

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        return ["all"] * len(passes)

    def combine(self, sets: Mapping[str, Gradients]) -> Gradients:
        return sets["all"]


POLICIES = {"sum": Sum}


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
