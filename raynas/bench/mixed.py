"""Timing of mixed batches, by masks and by groups, and of the separate passes that they replace, in turns."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import Measured, in_turns
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.supernet import Execution
from raynas.progress.reporter import Progress, silent
from raynas.space import Arch, Space, load_space

OnePass = Callable[[], tuple[Tensor, Tensor]]
"""A forward pass: its logits, and the labels that they are for."""


def bench_mixed(
    space: Space | str = "vit_resnas/tiny",
    archs: int = 8,
    batch_size: int = 64,
    rounds: int = 5,
    threads: int = 1,
    device: str = "cpu",
    seed: int = 0,
    progress: Progress = silent,
) -> list[Measured]:
    """Time forward and backward of a batch that random archs share.

    Args:
        archs: number of archs that share the batch.
        seed: seed of archs and images.

    Returns:
        Seconds of the largest subnet alone, and beside them the others': each arch alone on the whole batch, their mean
        (`mean`), the mixed batch by `masks` and by `groups`, of which one is marked as chosen by training, and each
        arch on its own rows, one pass after the other (`apart`). The last three also beside the mean.

    Raises:
        UserError: there are fewer images than archs.
    """
    space = load_space(space) if isinstance(space, str) else space
    if archs > batch_size:
        raise UserError(f"{archs} archs cannot share {batch_size} images: give a larger batch")
    with on_device(device, threads) as place:
        return _time(space, archs, batch_size, rounds, place, seed, progress)


def _time(
    space: Space, count: int, batch_size: int, rounds: int, device: torch.device, seed: int, progress: Progress
) -> list[Measured]:
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
    values = in_turns(kinds, rounds, progress)
    largest, mean = values["largest"], values["mean"]
    rows = [Measured("largest", "s", largest), Measured("mean / largest", "s", mean, largest)]
    for name in [name for name in kinds if name not in ("largest", "mean")]:
        label = f"{name} (chosen)" if name == chosen else name
        rows.append(Measured(f"{label} / largest", "s", values[name], largest))
        rows.append(Measured(f"{label} / mean", "s", values[name], mean))
    return rows
