"""Timing of a training step of a DeiT-Ti-shaped subnet and of timm's deit_tiny, in turns: the cost of elasticity."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.space import load_arch, load_space

REFERENCE = "timm deit_tiny"
SUPERNET, SUBNET = "autoformer/tiny_ratio3", "autoformer/published/deit_tiny"


@dataclass(frozen=True)
class StepTiming:
    """Forward and backward passes of one network.

    Attributes:
        name: name of the network.
        seconds: median duration of a pass.
        ratio: median of the ratios to the reference's pass of the same round.
    """

    name: str
    seconds: float
    ratio: float


def bench_step(
    rounds: int = 11, batch_size: int = 8, threads: int = 1, progress: Progress = silent
) -> list[StepTiming]:
    """Time forward and backward of timm's deit_tiny and of the same shape with relative position, which it lacks.

    The subnet runs extracted, and sliced out of AutoFormer-T's supernet. The networks take turns within a round, so
    that other work on the machine affects all of them equally. The processor time of this process is measured.

    Args:
        rounds: timed passes of each network.
        batch_size: images [3, 224, 224] of a pass.
        threads: threads of torch during the benchmark.
        progress: called with a line after each round.

    Returns:
        A timing of each network, the reference first.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _time_steps(rounds, batch_size, progress)
    finally:
        torch.set_num_threads(before)


def _time_steps(rounds: int, batch_size: int, progress: Progress) -> list[StepTiming]:
    supernet = build_supernet(load_space(SUPERNET))
    shape = load_arch(SUBNET)
    arch = supernet.space.off_grid(dict(shape))  # with the supernet's constants: relative position above all
    extracted = supernet.extract(arch)
    deit = timm.create_model("deit_tiny_patch16_224", pretrained=False)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch_size, 3, 224, 224, generator=generator)
    labels = torch.randint(1000, (batch_size,), generator=generator)
    networks: dict[str, tuple[nn.Module, Callable[[], Tensor]]] = {
        REFERENCE: (deit, lambda: deit(images)),
        "extracted": (extracted, lambda: extracted(images)),
        "sliced": (supernet, lambda: supernet(images, arch)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for round_ in range(rounds + 1):
        for name, (network, forward) in networks.items():
            network.zero_grad(set_to_none=True)
            start = time.process_time()
            F.cross_entropy(forward(), labels).backward()
            seconds[name].append(time.process_time() - start)
        progress(f"round {round_} of {rounds}: " + ", ".join(f"{n} {s[-1]:.3f} s" for n, s in seconds.items()))
    timed = {name: np.array(values[1:]) for name, values in seconds.items()}  # the first round warms up
    return [
        StepTiming(name, float(np.median(values)), float(np.median(values / timed[REFERENCE])))
        for name, values in timed.items()
    ]
