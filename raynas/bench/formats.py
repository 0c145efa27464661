"""Timing of a convolutional network with its channels last in memory, and of scores in half precision, in turns."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import torch

from raynas.bench.device import on_device, seconds
from raynas.bench.measured import Measured, in_turns
from raynas.bench.passes import Networks, compare_passes
from raynas.data.pixels import Normalisation
from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.scoring.score_arch import score_arch
from raynas.space import Space, load_space


def bench_channels_last(
    space: Space | str = "nasvit/released",
    rounds: int = 5,
    batch_size: int = 4,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Measured]:
    """Time the smallest subnet, extracted, with its channels last in memory, as it runs on CPUs, and contiguous.

    Args:
        space: a space of hybrids.

    Returns:
        Seconds channels last beside those contiguous, forward and as a training step (forward and backward).
    """
    space = load_space(space) if isinstance(space, str) else space
    with on_device(device, threads) as place:
        contiguous = build_supernet(space).extract(space.smallest()).to(place)
        images = torch.randn(batch_size, space.channels, *space.input_size, device=place)
        labels = torch.randint(space.classes, (batch_size,), device=place)
        last = deepcopy(contiguous)
        contiguous.order = torch.contiguous_format  # type: ignore[assignment]
        networks: Networks = {
            "channels last": (last, lambda: last(images)),
            "contiguous": (contiguous, lambda: contiguous(images)),
        }
        return compare_passes(networks, labels, rounds, progress, f"{{}} of {space.name}")


def bench_precision(
    space: Space | str = "autoformer/tiny",
    precision: str = "bf16",
    rounds: int = 5,
    images: int = 16,
    threads: int = 1,
    device: str = "cpu",
    progress: Progress = silent,
) -> list[Measured]:
    """Time scores of the smallest subnet of an untrained supernet, on random images, in half precision and in fp32.

    Args:
        precision: bf16 or fp16.
    """
    space = load_space(space) if isinstance(space, str) else space
    with on_device(device, threads) as place:
        supernet = build_supernet(space).eval().to(place)
        normalisation = Normalisation((0.5,) * space.channels, (0.25,) * space.channels)
        pixels = torch.randint(0, 256, (images, space.channels, *space.input_size), dtype=torch.uint8)
        labels = torch.randint(space.classes, (images,), device=place)
        arch, on_place = space.smallest(), pixels.to(place)

        def score(precision: str) -> float:
            options = (labels, normalisation, images, precision)
            return seconds(place, lambda: score_arch(supernet, arch, on_place, *options))

        values = in_turns({name: partial(score, name) for name in (precision, "fp32")}, rounds, progress)
    return [Measured(f"score of {space.name}, {precision} / fp32", "s", values[precision], values["fp32"])]
