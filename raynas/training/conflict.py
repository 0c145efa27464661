"""How often the gradients of the largest subnet and of the others conflict (NASViT, Tables 4 and 7).

At some steps of an epoch the gradient of the largest subnet is compared with that of all other passes, layer by layer
(see `layer_of`): the ratio is the share of negative cosines among all layers and steps where both are there. Sums and
means of the others' gradients have the same cosines. Where a step has no pass of the largest subnet, it is run for the
comparison alone: training does not see it.
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
"""What the epoch's sums of both counts are called; those of a layer have its name behind."""


def is_compared(step: int, steps: int, wanted: int) -> bool:
    """Whether a step of an epoch, counted from 0, is one of the `wanted` that are spread evenly over its `steps`."""
    return step == 0 or step * wanted // steps > (step - 1) * wanted // steps


def compare(largest: Gradients, others: Gradients, names: Sequence[str], layers: bool) -> dict[str, float]:
    """How many layers' gradients have a negative cosine, and how many have one at all.

    Args:
        names: of the parameters.
        layers: whether to count for each layer, too.

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
    """An epoch's `conflict`, and `conflict_layers` where layers were counted; nothing where no step was compared."""
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
    """A network's buffers and torch's random streams are afterwards as they were before."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    for buffer, before in kept:
        buffer.copy_(before)
