"""Batch normalisation of elastic width, and statistics that a pass can be given in place of the running averages."""

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
class Statistics:
    """What the batch norms of one subnet go by: a value, which `raynas.nets.calibration` makes.

    Attributes:
        arch: the subnet.
        averages: for each path of the weight-sharing pattern (None where there is one) the means and variances of its
            acting channels, by the names that the extracted subnet's state dict has for them.
    """

    arch: Arch
    averages: Mapping[Side | None, Mapping[str, Tensor]]


class ElasticBatchNorm(nn.Module):
    """Batch normalisation over the acting channels.

    In training a pass is normalised by its own batch, and moves its channels' running averages, which are then of
    whatever archs ran lately: enough for a network of one arch, and of little worth for a supernet, whose subnets want
    `Statistics` of their own.

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
        self.eps, self.momentum = eps, momentum

    def select(self, width: Channels) -> dict[str, Tensor]:
        """The acting part of the parameters and of the running averages."""
        averaged = self._averaged(width)
        return {
            "weight": width.select(self.weight, 0),
            "bias": width.select(self.bias, 0),
            "running_mean": averaged.select(self.running_mean, 0),
            "running_var": averaged.select(self.running_var, 0),
        }

    def _averaged(self, width: Channels) -> Channels:
        """Where the acting channels lie in the averages: those may be of nothing else (see `using`)."""
        return Channels.first(width.count) if len(self.running_mean) == width.count else width

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        """[batch, width, rows, columns], normalised.

        Raises:
            UserError: in training, of one value a channel.
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
    """A batch [batch, acting, rows, columns] normalised by itself; the acting channels' running averages are moved.

    Raises:
        UserError: it has one value a channel.
    """
    if x.numel() == acting.count:
        raise UserError(
            "batch normalisation cannot train on one image whose grid is 1 x 1: give every arch at least two "
            "images of a batch (a larger batch, or fewer archs that share it)"
        )
    # Copies: autograd keeps what it is given, and another arch may move these channels before this one's gradient.
    mean, variance = (acting.select(averages, 0).clone() for averages in (means, variances))
    out = F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps)
    acting.put(means, mean)
    acting.put(variances, variance)
    return out


torch.fx.wrap("normed_by_batch")  # it asks for sizes, which a trace does not know


@contextmanager
def using(network: nn.Module, averages: Mapping[str, Tensor]) -> Iterator[None]:
    """Within, a network's batch norms have these averages in place of their own, which nothing touches."""
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
