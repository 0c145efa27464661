"""Synaptic flow (Tanaka et al., 2020), as a score of networks (Abdelfattah et al., 2021)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.nets.supernet import Supernet
from raynas.proxies.network import flow, same


def synflow(network: Supernet, images: Tensor, generator: torch.Generator) -> float:
    """Return the logarithm of the sum over all parameters of |value x gradient| of the flow through a network.

    The flow is the sum of the logits for an image of ones, with every parameter at its absolute value and without norms
    (Abdelfattah et al. leave out batch norms). In a chain of linear layers every layer has the same sum.
    """
    found = flow(network, {F.batch_norm: same, F.layer_norm: same})
    return math.log(sum(float((value.detach() * slope).abs().sum()) for value, slope in found.items()))
