"""MACs counted in a network's forward pass: an independent check of `raynas.costs.cost`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_macs(module: nn.Module, x: Tensor) -> int:
    """Count the multiply-accumulates of a forward pass on `x`: convolutions, linear layers and matrix products.

    The result is half of torch's FLOP count. Attention runs on the MATH backend, because torch counts nothing for some
    fused kernels.
    """
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        module(x)
    return counter.get_total_flops() // 2
