"""From stored pixels to what a network sees; needs torch alone, so that a scoring replica starts fast and small."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Standardisation(Protocol):
    """Per-channel mean and deviation of pixels scaled to [0, 1]."""

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...


def normalise(pixels: Tensor, data: Standardisation) -> Tensor:
    """Pixels uint8 [..., channels, height, width] to float32, with the mean and deviation of `data`."""
    mean = torch.tensor(data.mean, device=pixels.device).view(-1, 1, 1)
    std = torch.tensor(data.std, device=pixels.device).view(-1, 1, 1)
    return pixels.float().div_(255).sub_(mean).div_(std)
