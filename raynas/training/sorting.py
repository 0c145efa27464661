"""Sorting of heads and hidden channels, so that narrow subnets, which use the first ones, get the important ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from raynas.errors import ConfigError
from raynas.space import Space


@torch.no_grad()
def sort_channels(model: nn.Module, optimizer: torch.optim.Optimizer, ema: nn.Module | None = None) -> None:
    """Sort each block's heads and hidden channels by the L1 norm of all their weights, the largest first.

    The largest network computes the same as before; narrower ones get units with larger weights (ViT-ResNAS's release,
    at the start of each epoch of its warm-up; not in the paper). The optimiser's state of a weight and its moving
    average are sorted with it.

    Args:
        model: a supernet.
        optimizer: its optimiser.
        ema: its averaged copy, sorted in the same order.

    Raises:
        ConfigError: the space's widths are not prefixes, or the optimiser's state does not have the weights' shapes.
    """
    check_sortable(model.space)  # type: ignore[arg-type]
    learnt = dict(model.named_parameters())
    held = {**learnt, **dict(model.named_buffers())}  # BatchNorm averages are sorted with their channels
    averaged = {} if ema is None else {**dict(ema.named_parameters()), **dict(ema.named_buffers())}
    for group in model.exchangeable():  # type: ignore[operator]
        weights = [_units(learnt[name], *axis).flatten(1) for name, axis in group.items() if name in learnt]
        order = torch.argsort(torch.cat(weights, dim=1).abs().sum(1), descending=True, stable=True)
        for name, axis in group.items():
            copies = [averaged[name]] if name in averaged else []
            for tensor in (held[name], *_remembered(optimizer, held[name]), *copies):
                units = _units(tensor, *axis)
                units.copy_(units[order])


def check_sortable(space: Space) -> None:
    """Check that narrow widths of the space's networks are the first channels.

    Raises:
        ConfigError: they are not.
    """
    if space.constants.sharing != "ordinal":
        raise ConfigError("plan.sort_channels: narrow widths are the first channels with sharing: ordinal alone")


def _units(tensor: Tensor, dim: int, entries: int) -> Tensor:
    """Return a view [units, entries, ...] of the units along an axis."""
    return tensor.unflatten(dim, (-1, entries)).movedim((dim, dim + 1), (0, 1))


def _remembered(optimizer: torch.optim.Optimizer, parameter: Tensor) -> Iterator[Tensor]:
    """Yield the optimiser's tensors with a number for each weight, such as AdamW's two moments."""
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.numel() == 1:
            continue
        if value.shape != parameter.shape:
            raise ConfigError(
                f"plan.sort_channels: {type(optimizer).__name__} keeps {name} of another shape than the weights: "
                "use an optimiser such as adamw"
            )
        yield value
