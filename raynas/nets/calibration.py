"""The statistics that a subnet's batch norms go by, from batches of images (Yu et al., 2020, BigNAS; section 3.4).

In a weight-sharing supernet every arch has statistics of its own, which training does not keep: running averages are a
mixture over archs. They are made when a subnet is scored, and they are a value: the supernet, whose memory others may
map, is not written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raynas.config import shown
from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm, Statistics, using
from raynas.nets.supernet import Supernet
from raynas.space import Arch


def wants_calibration(network: nn.Module) -> bool:
    """Whether a network has subnets with statistics of their own, without which their scores mean little."""
    alone = isinstance(network, Supernet) and network.space.cardinality() == 1
    return not alone and any(isinstance(module, ElasticBatchNorm) for module in network.modules())


@torch.no_grad()
def calibrate(network: Supernet, arch: Mapping[str, Any], batches: Iterable[Tensor]) -> Statistics:
    """The statistics of one subnet: those of each batch, averaged.

    Each batch weighs the same; variances are the unbiased ones. All else of the network is as in evaluation. Afterwards
    `network(x, arch, statistics=...)` and `network.extract(arch, statistics=...)` go by them.

    Args:
        network: a supernet, which may be frozen and mapped from elsewhere, or a subnet.
        arch: the subnet.
        batches: images [batch, channels, height, width] as the network takes them, normalised; read once. The papers
            take tens of batches of training images, augmented as in training.

    Raises:
        UserError: there is no batch, one is none of images, or the arch does not fit.
    """
    if not isinstance(arch, Mapping):
        raise UserError(f"calibration is of one arch, found {shown(arch)}")
    arch = arch if isinstance(arch, Arch) else network.space.arch(arch)
    norms = {name: module for name, module in network.named_modules() if isinstance(module, ElasticBatchNorm)}
    names = {f"{name}.{average}" for name in norms for average in ("running_mean", "running_var")}
    averages = {
        side: {n: torch.zeros_like(t) for n, t in network.select(arch, side).items() if n in names}
        for side in network.sides
    }
    seen = 0
    with _by_batch(network, norms.values()):
        for images in batches:
            if not isinstance(images, Tensor) or not images.is_floating_point() or not len(images):
                raise UserError("calibration takes batches of normalised images alone: floats, one image at least")
            seen += 1
            for norm in norms.values():
                norm.momentum = 1 / seen
            for side, own in averages.items():
                with using(network, own):
                    network(images, arch, side=side)
    if not seen:
        raise UserError("calibration needs at least one batch of images")
    return Statistics(arch, averages)


@contextmanager
def _by_batch(network: Supernet, norms: Iterable[ElasticBatchNorm]) -> Iterator[None]:
    """Within, batch norms are in training and all else in evaluation; afterwards all is as it was."""
    modes = {module: module.training for module in network.modules()}
    momenta = {norm: norm.momentum for norm in norms}
    try:
        network.eval()
        for norm in momenta:
            norm.train()
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, momentum in momenta.items():
            norm.momentum = momentum
