"""Calibration of a subnet's batch-norm statistics on batches of images (Yu et al., 2020, BigNAS; section 3.4).

In a weight-sharing supernet every arch needs its own statistics, which training does not keep: running averages mix
archs. They are computed when a subnet is scored and returned as a value. The supernet is not modified, since other
processes may share its memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm, NormStatistics, using
from raynas.nets.supernet import Supernet
from raynas.space import Arch
from raynas.text import shown


def wants_calibration(network: nn.Module) -> bool:
    """Return True if a network's subnets need their own batch-norm statistics to be scored."""
    alone = isinstance(network, Supernet) and network.space.cardinality() == 1
    return not alone and any(isinstance(module, ElasticBatchNorm) for module in network.modules())


@torch.no_grad()
def calibrate(network: Supernet, arch: Mapping[str, Any], batches: Iterable[Tensor]) -> NormStatistics:
    """Compute the batch-norm statistics of one subnet, averaged over batches.

    Batches have equal weight; variances are unbiased. The rest of the network runs as in evaluation. Pass the result to
    `network(x, arch, statistics=...)` or `network.extract(arch, statistics=...)`.

    Args:
        network: a supernet, which may be frozen or in shared memory, or a subnet.
        batches: normalised images [batch, channels, height, width]; read once. The papers use tens of batches of
            training images, augmented as in training.

    Raises:
        UserError: there is no batch, a batch has no images, or the arch does not fit.
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
    return NormStatistics(arch, averages)


@contextmanager
def _by_batch(network: Supernet, norms: Iterable[ElasticBatchNorm]) -> Iterator[None]:
    """Put batch norms in training mode and the rest in evaluation mode within the context, then restore all modes."""
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
