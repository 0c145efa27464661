"""Timing of a DeiT-Ti-shaped subnet and of timm's deit_tiny, in turns: the cost of elasticity."""

from __future__ import annotations

import timm
import torch

from raynas.bench.device import on_device
from raynas.bench.measured import Measured
from raynas.bench.passes import Networks, compare_passes
from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.space import load_arch, load_space

REFERENCE = "timm's deit_tiny"
SUPERNET, SUBNET = "autoformer/tiny_ratio3", "autoformer/published/deit_tiny"


def bench_step(
    rounds: int = 11, batch_size: int = 8, threads: int = 1, device: str = "cpu", progress: Progress = silent
) -> list[Measured]:
    """Time forward passes, and forward with backward, of timm's deit_tiny and of the same shape with relative position.

    The subnet, whose relative position timm's network lacks, runs extracted, and sliced out of AutoFormer-T's supernet.

    Returns:
        Seconds (see `raynas.bench.device.seconds`) of the extracted and the sliced subnet, forward and as a training
        step, beside the reference's.
    """
    with on_device(device, threads) as place:
        supernet = build_supernet(load_space(SUPERNET)).to(place)
        arch = supernet.space.off_grid(dict(load_arch(SUBNET)))  # with the supernet's constants: relative position
        extracted = supernet.extract(arch)
        deit = timm.create_model("deit_tiny_patch16_224", pretrained=False).to(place)
        images = torch.randn(batch_size, 3, 224, 224, device=place)
        labels = torch.randint(1000, (batch_size,), device=place)
        networks: Networks = {
            "extracted": (extracted, lambda: extracted(images)),
            "sliced": (supernet, lambda: supernet(images, arch)),
            REFERENCE: (deit, lambda: deit(images)),
        }
        return compare_passes(networks, labels, rounds, progress)
