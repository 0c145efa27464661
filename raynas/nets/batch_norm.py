"""Batch normalisation of elastic width, with statistics that can replace the running averages in a pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.sharing import Side
from raynas.space import Arch


@dataclass(frozen=True)
class NormStatistics:
    """Batch-norm statistics of one subnet, computed by `raynas.nets.calibration`.

    Attributes:
        averages: for each path of the weight-sharing pattern (None for a single path), the means and variances of its
            active channels, by their names in the extracted subnet's state dict.
    """

    arch: Arch
    averages: Mapping[Side | None, Mapping[str, Tensor]]


class ElasticBatchNorm(nn.Module):
    """Batch normalisation over the active channels.

    A training pass is normalised by its own batch and updates the running averages of its channels. These mix the archs
    that ran recently: fine for a network of one arch, but the subnets of a supernet need their own `NormStatistics`.

    Attributes:
        momentum: the weight of a batch in the running averages.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.channels, self.eps, self.momentum = channels, eps, momentum

    def select(self, width: Channels) -> dict[str, Tensor]:
        """Return the active part of the parameters and of the running averages."""
        averaged = self._averaged(width)
        return {
            "weight": width.select(self.weight, 0),
            "bias": width.select(self.bias, 0),
            "running_mean": averaged.select(self.running_mean, 0),
            "running_var": averaged.select(self.running_var, 0),
        }

    def _averaged(self, width: Channels) -> Channels:
        """Return the active channels' positions in the averages, which may hold only these (see `using`)."""
        held = self._buffers["running_mean"]  # as an attribute it may be a proxy of torch.fx
        assert held is not None
        return Channels.first(width.count) if held.shape[0] < self.channels else width

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        """Normalise [batch, width, rows, columns].

        Raises:
            UserError: in training, if each channel has a single value.
        """
        selected = self.select(width)
        weight, bias, mean, variance = (selected[n] for n in ("weight", "bias", "running_mean", "running_var"))
        if not self.training:
            return F.batch_norm(x, mean, variance, weight, bias, eps=self.eps)
        averages, acting = (self.running_mean, self.running_var), self._averaged(width)
        return normed_by_batch(x, weight, bias, *averages, acting, self.momentum, self.eps)


def normed_by_batch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    means: Tensor,
    variances: Tensor,
    acting: Channels,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalise [batch, acting, rows, columns] by its own statistics, and update the active channels' running averages.

    Raises:
        UserError: each channel has a single value.
    """
    if x.numel() == acting.count:
        raise UserError(
            "batch normalisation cannot train on one image whose grid is 1 x 1: give every arch at least two "
            "images of a batch (a larger batch, or fewer archs that share it)"
        )
    # Copies, because autograd keeps its inputs and another arch may update these channels before the backward pass.
    mean, variance = (acting.select(averages, 0).clone() for averages in (means, variances))
    out = F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
    acting.put(means, mean)
    acting.put(variances, variance)
    return out


torch.fx.wrap("normed_by_batch")  # opaque to torch.fx, because sizes are unknown in a trace


@contextmanager
def using(network: nn.Module, averages: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace the averages of a network's batch norms within the context; their own stay unchanged."""
    before: list[tuple[nn.Module, str, Tensor | None]] = []
    try:
        for name, tensor in averages.items():
            path, _, leaf = name.rpartition(".")
            owner = network.get_submodule(path)
            before.append((owner, leaf, owner._buffers[leaf]))
            owner._buffers[leaf] = tensor
        yield
    finally:
        for owner, leaf, own in before:
            owner._buffers[leaf] = own
