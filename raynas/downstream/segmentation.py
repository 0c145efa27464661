"""Semantic segmentation: Semantic FPN, UperNet and SegFormer heads on the pyramid of any network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation, FeaturePyramidNetwork

from raynas.downstream.pyramid import Pyramid, pyramid_of

POOLS = (1, 2, 3, 6)
"""Rows and columns to which UperNet pools the coarsest map."""


def resized(x: Tensor, size: tuple[int, ...] | torch.Size) -> Tensor:
    """Resize maps [batch, channels, rows, columns] bilinearly."""
    return x if x.shape[-2:] == size else F.interpolate(x, size, mode="bilinear", align_corners=False)


class SemanticFPNHead(nn.Module):
    """Panoptic FPN's semantic branch (Kirillov et al., 2019, section 3): a feature pyramid, each of whose maps is
    convolved and doubled up to the finest one's grid, and their sum.

    Args:
        channels: channels of the pyramid's maps, from fine to coarse.
        between: channels of the feature pyramid.
        width: channels of the sum.
    """

    def __init__(self, channels: list[int], between: int = 256, width: int = 128):
        super().__init__()
        self.width = width
        self.fpn = FeaturePyramidNetwork(channels, between)
        self.scales = nn.ModuleList(
            nn.ModuleList(Conv2dNormActivation(width if k else between, width, 3) for k in range(max(1, level)))
            for level in range(len(channels))
        )

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """Map a pyramid to [batch, width, rows, columns] on its finest grid."""
        merged = list(self.fpn(dict(maps)).values())
        grids = [each.shape[-2:] for each in merged]
        outputs = []
        for level, (x, layers) in enumerate(zip(merged, self.scales, strict=True)):
            for finer, layer in enumerate(cast(nn.ModuleList, layers), start=1):
                x = resized(layer(x), grids[max(0, level - finer)])
            outputs.append(x)
        return torch.stack(outputs).sum(0)


class UperNetHead(nn.Module):
    """UperNet's head (Xiao et al., 2018): pooled contexts of the coarsest map, a feature pyramid, and all its maps.

    Args:
        channels: channels of the pyramid's maps, from fine to coarse.
        width: channels of every part.
    """

    def __init__(self, channels: list[int], width: int = 512):
        super().__init__()
        self.width = width
        self.pooled = nn.ModuleList(Conv2dNormActivation(channels[-1], width, 1) for _ in POOLS)
        self.context = Conv2dNormActivation(channels[-1] + len(POOLS) * width, width, 3)
        self.lateral = nn.ModuleList(Conv2dNormActivation(each, width, 1) for each in channels[:-1])
        self.smooth = nn.ModuleList(Conv2dNormActivation(width, width, 3) for _ in channels[:-1])
        self.fuse = Conv2dNormActivation(len(channels) * width, width, 3)

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """Map a pyramid to [batch, width, rows, columns] on its finest grid."""
        *finer, coarsest = maps.values()
        contexts = [
            resized(layer(F.adaptive_avg_pool2d(coarsest, side)), coarsest.shape[-2:])
            for layer, side in zip(self.pooled, POOLS, strict=True)
        ]
        x = self.context(torch.cat([coarsest, *contexts], dim=1))
        outputs = [x]
        for layer, smooth, each in reversed(list(zip(self.lateral, self.smooth, finer, strict=True))):
            x = layer(each) + resized(x, each.shape[-2:])
            outputs.insert(0, smooth(x))
        return self.fuse(torch.cat([resized(each, outputs[0].shape[-2:]) for each in outputs], dim=1))


class SegFormerHead(nn.Module):
    """SegFormer's head (Xie et al., 2021, section 3.2): every map projected to one width, and mixed pixel by pixel.

    Args:
        channels: channels of the pyramid's maps, from fine to coarse.
        width: channels of every projection.
    """

    def __init__(self, channels: list[int], width: int = 256):
        super().__init__()
        self.width = width
        self.projections = nn.ModuleList(nn.Conv2d(each, width, 1) for each in channels)
        self.fuse = Conv2dNormActivation(len(channels) * width, width, 1)

    def forward(self, maps: Mapping[str, Tensor]) -> Tensor:
        """Map a pyramid to [batch, width, rows, columns] on its finest grid."""
        grid = next(iter(maps.values())).shape[-2:]
        projected = [resized(layer(x), grid) for layer, x in zip(self.projections, maps.values(), strict=True)]
        return self.fuse(torch.cat(projected, dim=1))


class Segmenter(nn.Module):
    """A pyramid, a head and a classifier of every pixel.

    Args:
        head: maps a pyramid to features on its finest grid; its attribute `width` is their number of channels.
        classes: number of classes.
        dropout: share of the classifier's input channels that are dropped in training.
    """

    def __init__(self, pyramid: Pyramid, head: nn.Module, classes: int, dropout: float = 0.1):
        super().__init__()
        self.pyramid, self.head = pyramid, head
        self.dropout = nn.Dropout2d(dropout)
        self.classifier = nn.Conv2d(int(head.width), classes, 1)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Map images [batch, channels, height, width] to logits [batch, classes, height, width]."""
        logits = self.classifier(self.dropout(self.head(self.pyramid(images))))
        return resized(logits, images.shape[-2:])


def semantic_fpn(network: nn.Module, classes: int, width: int = 128, between: int = 256) -> Segmenter:
    """Return a network with a Semantic FPN head.

    Args:
        network: a network of raynas, or one that timm made with `features_only=True`; see `Pyramid`.
        classes: number of classes.
        width, between: channels of the head, and of its feature pyramid.

    Raises:
        UserError: the network gives no maps, or there are no classes.
    """
    return _joined(network, classes, lambda channels: SemanticFPNHead(channels, between, width))


def upernet(network: nn.Module, classes: int, width: int = 512) -> Segmenter:
    """Return a network with an UperNet head; arguments are those of `semantic_fpn`."""
    return _joined(network, classes, lambda channels: UperNetHead(channels, width))


def segformer(network: nn.Module, classes: int, width: int = 256) -> Segmenter:
    """Return a network with a SegFormer head; arguments are those of `semantic_fpn`."""
    return _joined(network, classes, lambda channels: SegFormerHead(channels, width))


def _joined(network: nn.Module, classes: int, make: Callable[[list[int]], nn.Module]) -> Segmenter:
    pyramid = pyramid_of(network, classes)
    return Segmenter(pyramid, make(pyramid.channels), classes)
