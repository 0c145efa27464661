"""AZ-NAS (Lee and Ham, 2024, "Assembling Zero-Cost Proxies for Network Architecture Search", section 3)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.costs import cost
from raynas.nets.layers import padded
from raynas.nets.supernet import Supernet
from raynas.proxies.network import blocks, recorded


def az_nas(network: Supernet, images: Tensor, generator: torch.Generator) -> dict[str, float]:
    """Return AZ-NAS's parts, each the larger the better; `combined` makes a score of their ranks.

    - expressivity: the entropy of the explained variances of a block's output channels, summed over blocks;
    - progressivity: the least increase of that entropy from a block to the next; left out for networks of one width,
      as in the release for AutoFormer;
    - trainability: 2 - s - 1 / s, the mean over blocks, with s the spectral norm of the block's mean Jacobian,
      estimated from random signs at the output; NaN without blocks;
    - complexity: MACs.

    Blocks are whole: AZ-NAS's release looks at AutoFormer's attention and MLP apart.
    """
    with recorded(blocks(network)) as passes:
        network(images)
    entropies = [entropy(_channels_last(after.detach())) for _, after in passes]
    parts = {"expressivity": sum(entropies)}
    if hasattr(network, "stages"):
        parts["progressivity"] = min((b - a for a, b in itertools.pairwise(entropies)), default=0.0)
    slopes = [trainability(*each, generator) for each in passes]
    parts["trainability"] = float(np.mean(slopes)) if slopes else math.nan
    parts["complexity"] = float(cost(network.space, [network.space.smallest()])["macs"][0])
    return parts


def combined(parts: dict[str, float], reference: list[dict[str, float]]) -> float:
    """Return the sum of the logarithms of the parts' ranks among reference networks, ranks in (0, 1].

    A value that some of the reference equal has the mean of their ranks. Parts of the reference that are NaN are left
    out; NaN if a part of the network is.
    """
    if any(math.isnan(value) for value in parts.values()):  # sorted, NaN would be the largest
        return math.nan
    total = 0.0
    for name, value in parts.items():
        known = np.sort([each[name] for each in reference if not math.isnan(each[name])])
        below, upto = (np.searchsorted(known, value, side) for side in ("left", "right"))
        total += float(np.log(((below + upto) / 2 + 1) / (len(known) + 1)))
    return total


def entropy(features: Tensor) -> float:
    """Return the entropy, in nats, of the shares of variance along the principal axes of features [n, channels]."""
    centred = features - features.mean(0)
    shares = torch.linalg.eigvalsh(centred.T @ centred).clamp(min=0)
    shares = shares / shares.sum()
    return float(-torch.special.xlogy(shares, shares).sum())


def trainability(before: Tensor, after: Tensor, generator: torch.Generator) -> float:
    """Return 2 - s - 1 / s for a block's input and output, which must hang together in a graph."""
    signs = torch.empty(after.shape).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
    (slope,) = torch.autograd.grad(after, before, signs)
    if slope.ndim == 4 and slope.shape[2:] != signs.shape[2:]:  # squares of pixels become one
        stride = -(-slope.shape[2] // signs.shape[2])
        slope = F.pixel_unshuffle(padded(slope, stride), stride)
    slope, signs = _channels_last(slope), _channels_last(signs)
    spectral = float(torch.linalg.matrix_norm(slope.T @ signs / len(signs), 2)) + 1e-6
    return 2 - spectral - 1 / spectral


def _channels_last(features: Tensor) -> Tensor:
    """Return tokens [batch, tokens, channels] or images [batch, channels, rows, columns] as [all, channels]."""
    features = features.movedim(1, -1) if features.ndim == 4 else features
    return features.reshape(-1, features.shape[-1])
