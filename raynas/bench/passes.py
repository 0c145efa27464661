"""Timing of forward passes and training steps of several networks, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.bench.device import seconds
from raynas.bench.measured import Measured, in_turns
from raynas.progress.reporter import Progress

Networks = Mapping[str, tuple[nn.Module, Callable[[], Tensor]]]
"""Networks by name, each with the function that returns its logits for its images."""


def training_seconds(network: nn.Module, run: Callable[[], Tensor], labels: Tensor) -> float:
    """Return the duration of a network's forward and backward pass; `run` returns its logits."""
    network.train().zero_grad(set_to_none=True)
    return seconds(labels.device, lambda: F.cross_entropy(run(), labels).backward())


def compare_passes(
    networks: Networks, labels: Tensor, rounds: int, progress: Progress, named: str = "{}"
) -> list[Measured]:
    """Time networks, of which the last is the reference, on the device of their labels.

    Args:
        labels: int64 [batch], for the loss of a training step, which is forward and backward here.
        named: how a row is named; `{}` stands for `forward` or `training step`.
    """

    def forward(name: str) -> float:
        network, run = networks[name]
        network.eval()
        with torch.inference_mode():
            return seconds(labels.device, run)

    def step(name: str) -> float:
        return training_seconds(*networks[name], labels)

    measures = {"forward": forward, "training step": step}
    kinds = {f"{what}, {name}": partial(measure, name) for what, measure in measures.items() for name in networks}
    values = in_turns(kinds, rounds, progress)
    *others, reference = networks
    return [
        Measured(
            f"{named.format(what)}, {name} / {reference}",
            "s",
            values[f"{what}, {name}"],
            values[f"{what}, {reference}"],
        )
        for what in measures
        for name in others
    ]
