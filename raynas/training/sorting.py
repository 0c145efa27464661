"""Sorting of heads and hidden channels, so that narrow subnets, which use the first ones, get the important ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from raynas.errors import ConfigError
from raynas.nets.ordering import magnitudes
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
    groups = [group for group in model.exchangeable() if group.kind != "width"]  # type: ignore[operator]
    names = {axis.name for group in groups for axis in group.axes}
    # BatchNorm averages are sorted with their channels.
    sorted_alike = [
        {**dict(each.named_parameters()), **dict(each.named_buffers())} for each in (model, ema) if each is not None
    ]
    sorted_alike += _remembered(optimizer, {name: learnt[name] for name in names if name in learnt})
    for group in groups:
        order = torch.argsort(magnitudes(group, learnt), descending=True, stable=True)
        for tensors in sorted_alike:
            group.reorder(tensors, order)


def check_sortable(space: Space) -> None:
    """Refuse a space in whose networks narrow widths are not the first channels."""
    if space.constants.sharing != "ordinal":
        raise ConfigError("plan.sort_channels: narrow widths are the first channels with sharing: ordinal alone")


def _remembered(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> list[dict[str, Tensor]]:
    """Return the optimiser's tensors with a number for each weight, such as AdamW's two moments, by parameter name."""
    moments: dict[str, dict[str, Tensor]] = {}
    for name, parameter in parameters.items():
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        for kept, value in state.items():
            if not isinstance(value, Tensor) or value.numel() == 1:
                continue
            if value.shape != parameter.shape:
                raise ConfigError(
                    f"plan.sort_channels: {type(optimizer).__name__} keeps {kept} of another shape than the weights: "
                    "use an optimiser such as adamw"
                )
            moments.setdefault(kept, {})[name] = value
    return list(moments.values())
