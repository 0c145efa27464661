"""Timing of mixed batches, by masks and by groups, and of the separate passes that they replace, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import in_turns
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.supernet import Execution
from raynas.progress.reporter import Progress, silent
from raynas.space import Arch, Space, load_space

OnePass = Callable[[], tuple[Tensor, Tensor]]
"""A forward pass: its logits, and the labels that they are for."""


@dataclass(frozen=True)
class MixedTiming:
    """Forward and backward passes of one kind over the whole batch.

    Attributes:
        name: `largest`: the largest subnet alone. `mean`: each arch alone on the whole batch, and the mean of that.
            `masks`, `groups`: the mixed batch. `apart`: each arch on its own rows, one pass after the other.
        seconds: median.
        to_largest, to_mean: medians of the ratios to those of the same round.
        chosen: True for the execution that training would take.
    """

    name: str
    seconds: float
    to_largest: float
    to_mean: float
    chosen: bool


def bench_mixed(
    space: Space | str = "vit_resnas/tiny",
    archs: int = 8,
    batch_size: int = 64,
    rounds: int = 5,
    threads: int = 1,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = silent,
) -> list[MixedTiming]:
    """Time forward and backward of a batch that random archs share.

    All kinds take turns within a round, so that other work on the machine affects all of them equally. On a CPU the
    processor time of this process is measured, on a GPU the time until its work is done.

    Args:
        space: a space, or a shipped one's name.
        archs: number of archs that share the batch.
        batch_size: number of images.
        rounds: timed passes of each kind, after one that warms up.
        threads: threads of torch during the benchmark.
        device: a torch device.
        seed: seed of archs and images.
        progress: called with a line after each round.

    Raises:
        UserError: there is no such space or device, or it has fewer images than archs.
    """
    space = load_space(space) if isinstance(space, str) else space
    if archs > batch_size:
        raise UserError(f"{archs} archs cannot share {batch_size} images: give a larger batch")
    with on_device(device, threads) as place:
        return _time(space, archs, batch_size, rounds, place, seed, progress)


def _time(
    space: Space,
    count: int,
    batch_size: int,
    rounds: int,
    device: torch.device,
    seed: int,
    progress: Progress,
) -> list[MixedTiming]:
    torch.manual_seed(seed)
    supernet = build_supernet(space).to(device).train()
    archs = space.decode(space.deal_codes(np.random.default_rng(seed), count))
    images = torch.randn(batch_size, space.channels, *space.input_size, device=device)
    labels = torch.randint(space.classes, (batch_size,), device=device)

    def timed(passes: list[OnePass]) -> float:
        supernet.zero_grad(set_to_none=True)
        return sum(seconds(device, lambda one=one: F.cross_entropy(*one()).backward()) for one in passes)  # type: ignore[misc]

    def alone(arch: Arch, rows: slice = slice(None)) -> OnePass:
        return lambda: (supernet(images[rows], arch), labels[rows])

    def mixed(execution: Execution) -> OnePass:
        return lambda: (supernet(images, archs, execution=execution), labels)

    kinds: dict[str, Callable[[], float]] = {
        "largest": lambda: timed([alone(space.largest())]),
        "mean": lambda: timed([alone(arch) for arch in archs]) / count,
        "masks": lambda: timed([mixed("masks")]),
        "groups": lambda: timed([mixed("groups")]),
        "apart": lambda: timed([alone(arch, slice(index, None, count)) for index, arch in enumerate(archs)]),
    }
    maskable = not supernet.unmaskable(archs)
    if not maskable:
        del kinds["masks"]
    chosen = "masks" if maskable and supernet.prefers_masks(images, archs) else "groups"
    timed_rounds = {name: np.array(values) for name, values in in_turns(kinds, rounds, progress).items()}
    return [
        MixedTiming(
            name,
            float(np.median(values)),
            float(np.median(values / timed_rounds["largest"])),
            float(np.median(values / timed_rounds["mean"])),
            name == chosen,
        )
        for name, values in timed_rounds.items()
    ]
