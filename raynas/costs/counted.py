"""MACs counted while a network runs: the independent check on what `raynas.costs.cost` computes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Multiply-accumulates of a forward pass on `x`: convolutions, linear layers and matrix products.

    Half of torch's FLOP count. Attention runs by the MATH backend meanwhile: torch counts nothing for some of the
    fused kernels.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2
