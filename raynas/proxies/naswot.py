"""NASWOT (Mellor et al., 2021, "Neural Architecture Search without Training", section 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.nets.supernet import Supernet
from raynas.proxies.network import Calls


def naswot(network: Supernet, images: Tensor, generator: torch.Generator) -> float:
    """Return the logarithm of the determinant of the kernel of images, whose entries count the units that agree.

    A unit is an input of a non-linearity (GELU and SiLU as well as ReLU), and two images agree in it if it has the same
    sign for both. -inf if two images agree in all units.
    """
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64)

    def counted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def count(x: Tensor, *arguments: Any, **options: Any) -> Tensor:
            signs = (x > 0).reshape(len(images), -1).double()
            kernel.add_(signs @ signs.T + (1 - signs) @ (1 - signs).T)
            return function(x, *arguments, **options)

        return count

    with torch.no_grad(), Calls({function: counted(function) for function in (F.relu, F.gelu, F.silu)}):
        network(images)
    return float(torch.linalg.slogdet(kernel).logabsdet)
