"""Conflict ratio of the gradients of the largest subnet and the others (NASViT, Tables 4 and 7).

At some steps of an epoch the gradient of the largest subnet is compared with that of all other passes, layer by layer
(see `layer_of`). The ratio is the share of negative cosines among all layers and steps with both gradients. Sums and
means of the others' gradients have the same cosines. If a step has no pass of the largest subnet, one is run for the
comparison only, without effect on training.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from raynas.training.gradients import Gradients
from raynas.training.projection import by_unit, layer_of, products, unit_of

_NEGATIVE, _COMPARED = "conflict.negative", "conflict.compared"
"""Names of the epoch's sums of both counts; a layer's counts have its name appended."""


def is_compared(step: int, steps: int, wanted: int) -> bool:
    """Return True if a step, counted from 0, is one of `wanted` evenly spread over the `steps` of an epoch."""
    return step == 0 or step * wanted // steps > (step - 1) * wanted // steps


def compare(largest: Gradients, others: Gradients, names: Sequence[str], layers: bool) -> dict[str, float]:
    """Count the layers whose gradients have a negative cosine, and those that can be compared.

    Args:
        names: the parameters' names.
        layers: True to also count for each layer.

    Returns:
        Counts to be added up over an epoch; see `ratios`.
    """
    inner, first, second = by_unit(products(largest, others), unit_of(names, "layer")).unbind(1)
    compared = (first > 0) & (second > 0) & (inner.abs() < torch.inf)  # fp16 may overflow
    counts = torch.stack([compared & (inner < 0), compared]).double().tolist()
    found = {key: sum(column) for key, column in zip((_NEGATIVE, _COMPARED), counts, strict=True)}
    if layers:
        of_layers = dict.fromkeys(layer_of(name) for name in names)
        for layer, negative, there in zip(of_layers, *counts, strict=True):
            found |= {f"{_NEGATIVE}/{layer}": negative, f"{_COMPARED}/{layer}": there}
    return found


def ratios(sums: Mapping[str, float]) -> dict[str, Any]:
    """Return an epoch's `conflict`, and `conflict_layers` if layers were counted; nothing if no step was compared."""
    found: dict[str, Any] = {}
    if sums.get(_COMPARED):
        found["conflict"] = sums[_NEGATIVE] / sums[_COMPARED]
    layers = {
        key.partition("/")[2]: sums[f"{_NEGATIVE}/{key.partition('/')[2]}"] / count
        for key, count in sums.items()
        if key.startswith(f"{_COMPARED}/") and count
    }
    return found | ({"conflict_layers": layers} if layers else {})


@contextmanager
def unseen(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore a network's buffers and torch's random streams after the context."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    for buffer, before in kept:
        buffer.copy_(before)
