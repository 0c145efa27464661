"""TF-TAS's DSS indicator (Zhou et al., 2022, "Training-free Transformer Architecture Search", section 3)."""

from __future__ import annotations

import math
import re

import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.nets.supernet import Supernet
from raynas.proxies.network import block_parameters, flow, same

_ATTENTION = re.compile(r"(?:.+\.)?(?:qkv|q|k|v|proj)\.(?:.+\.)?weight")


def dss(network: Supernet, images: Tensor, generator: torch.Generator) -> float:
    """Return the logarithm of the blocks' synaptic diversity of attention plus synaptic saliency of the rest.

    Diversity is, for each projection of attention, the nuclear norm of its weights times that of their gradient;
    saliency is the sum of |weight x gradient| of the MLPs, and of the convolutions in families that have some. The
    gradients are those of synflow's flow, with layer norms, as in the release, and without batch norms. -inf for a
    network without blocks.
    """
    found, total = flow(network, {F.batch_norm: same}), 0.0
    for name, weight in block_parameters(network):
        if weight not in found or weight.ndim < 2 or not name.endswith("weight"):
            continue
        if _ATTENTION.fullmatch(name):
            value, slope = (each.flatten(0, -2) for each in (weight.detach(), found[weight]))
            total += float(torch.linalg.matrix_norm(value, "nuc") * torch.linalg.matrix_norm(slope, "nuc"))
        else:
            total += float((weight.detach() * found[weight]).abs().sum())
    return math.log(total) if total else -math.inf
