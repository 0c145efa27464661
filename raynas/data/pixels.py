"""From stored pixels to a network's input; needs torch alone, so that a scoring replica starts fast and small."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normalisation:
    """Per-channel mean and standard deviation of pixels scaled to [0, 1], which images are normalised with."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's images, which most pretrained models use."""


def normalise(pixels: Tensor, normalisation: Normalisation) -> Tensor:
    """Convert pixels uint8 [..., channels, height, width] to normalised float32."""
    mean = torch.tensor(normalisation.mean, device=pixels.device).view(-1, 1, 1)
    std = torch.tensor(normalisation.std, device=pixels.device).view(-1, 1, 1)
    return pixels.float().div_(255).sub_(mean).div_(std)
