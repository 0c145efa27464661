"""Detection and instance segmentation: torchvision's RetinaNet, FCOS and Mask R-CNN on the pyramid of any network."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torchvision.models.detection import FCOS, MaskRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops.feature_pyramid_network import (
    ExtraFPNBlock,
    FeaturePyramidNetwork,
    LastLevelMaxPool,
    LastLevelP6P7,
)

from raynas.downstream.pyramid import Pyramid, pyramid_of
from raynas.errors import UserError
from raynas.text import nearest

WIDTH = 256
"""Channels of the feature pyramid and the heads, as in the papers."""

REGION = 7
"""Rows and columns of a region that Mask R-CNN classifies."""

REGION_MAPS = 4
"""Maps, the finest first, that torchvision takes regions from."""

GROUPS = 32
"""Groups of the norms in FCOS's head."""


class Backbone(nn.Module):
    """A pyramid with a feature pyramid network, in the form that torchvision's detectors take.

    Args:
        first: index of the finest map that is used.
        extra: makes coarser maps from the coarsest; None for no more maps.
    """

    def __init__(self, pyramid: Pyramid, first: int, extra: ExtraFPNBlock | None, width: int = WIDTH):
        super().__init__()
        self.pyramid, self.first, self.out_channels = pyramid, first, width
        self.fpn = FeaturePyramidNetwork(pyramid.channels[first:], width, extra)
        self.reductions = pyramid.reductions[first:]

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Map images [batch, channels, height, width] to maps [batch, width, rows, columns] by name."""
        maps = list(self.pyramid(images).values())[self.first :]
        return self.fpn(OrderedDict((str(index), each) for index, each in enumerate(maps)))


def retinanet(network: nn.Module, classes: int, width: int = WIDTH, coarser: bool = True, **options: Any) -> RetinaNet:
    """Return torchvision's RetinaNet with a network as the backbone.

    Maps are the pyramid's, except the finest one, and two that are convolved from the coarsest. Anchors are four tokens
    large, as with torchvision's own backbones.

    Args:
        network: a network of raynas, or one that timm made with `features_only=True`; see `Pyramid`.
        classes: number of classes, with the background as class 0, as torchvision counts them.
        width: channels of the feature pyramid and of the head.
        coarser: False to leave the two coarser maps out, for small images.
        options: further arguments of torchvision's class, such as `min_size`, `image_mean`, `score_thresh`. Images,
            in [0, 1], are normalised as those of the network (its `pretrained_cfg`), or else by ImageNet's values.

    Raises:
        UserError: the network gives no maps, or a single one, there are no classes, or there is no such option.
    """
    backbone, strides = _dense(pyramid_of(network, classes), width, coarser)
    sizes = [4 * side for side in strides]
    octaves = tuple(tuple(int(size * 2 ** (third / 3)) for third in range(3)) for size in sizes)
    anchors = AnchorGenerator(octaves, ((0.5, 1.0, 2.0),) * len(octaves))
    return RetinaNet(backbone, classes, anchor_generator=anchors, **_checked(RetinaNet, backbone, options))


def fcos(network: nn.Module, classes: int, width: int = WIDTH, coarser: bool = True, **options: Any) -> FCOS:
    """Return torchvision's FCOS with a network as the backbone; arguments and maps are those of `retinanet`.

    Raises:
        UserError: the width is no multiple of 32, or the network gives no maps.
    """
    if width % GROUPS:
        raise UserError(f"width {width}: FCOS's norms have {GROUPS} groups: give a multiple of {GROUPS}")
    backbone, strides = _dense(pyramid_of(network, classes), width, coarser)
    sizes = tuple((side,) for side in strides)
    anchors = AnchorGenerator(sizes, ((1.0,),) * len(sizes))
    return FCOS(backbone, classes, anchor_generator=anchors, **_checked(FCOS, backbone, options))


def mask_rcnn(network: nn.Module, classes: int, width: int = WIDTH, **options: Any) -> MaskRCNN:
    """Return torchvision's Mask R-CNN with a network as the backbone; arguments are those of `retinanet`.

    Maps are all of the pyramid's, and one that is pooled from the coarsest. Anchors are eight tokens large. Boxes are
    classified by layers of four times the width, as in torchvision's at the default width.

    Raises:
        UserError: as `retinanet`, or tokens are not of so many pixels that torchvision cuts regions out rightly.
    """
    backbone = Backbone(pyramid_of(network, classes), 0, LastLevelMaxPool(), width)
    cut = backbone.reductions[:REGION_MAPS]
    if any(side & (side - 1) for side in cut) or cut[-1] > cut[0] << (len(cut) - 1):
        raise UserError(
            f"the maps have tokens of {', '.join(map(str, cut))} pixels: Mask R-CNN takes regions from maps of 2, 4, "
            "8, ... pixels without a gap; give such levels (out_indices), or take another detector"
        )
    sizes = tuple((8 * side,) for side in [*backbone.reductions, 2 * backbone.reductions[-1]])
    anchors = AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes))
    heads = {
        "box_head": TwoMLPHead(width * REGION**2, 4 * width),
        "box_predictor": FastRCNNPredictor(4 * width, classes),
        "mask_head": MaskRCNNHeads(width, (width,) * 4, 1),
        "mask_predictor": MaskRCNNPredictor(width, width, classes),
    }
    return MaskRCNN(backbone, rpn_anchor_generator=anchors, **_checked(MaskRCNN, backbone, {**heads, **options}))


def _dense(pyramid: Pyramid, width: int, coarser: bool) -> tuple[Backbone, list[int]]:
    """Return the backbone of a detector without proposals, and the pixels on the side of a token of each map."""
    if len(pyramid.channels) == 1:
        raise UserError("the network gives one map, the finest, which such a detector leaves out: give more levels")
    backbone = Backbone(pyramid, 1, LastLevelP6P7(pyramid.channels[-1], width) if coarser else None, width)
    strides = backbone.reductions
    return backbone, [*strides, 2 * strides[-1], 4 * strides[-1]] if coarser else strides


def _checked(detector: type[nn.Module], backbone: Backbone, options: dict[str, Any]) -> dict[str, Any]:
    """Return a detector's options, with the network's normalisation, and batches padded to its coarsest tokens.

    Raises:
        UserError: torchvision has no such option (its classes ignore it), or no normalisation is known for the
            network's number of channels.
    """
    known = {*inspect.signature(detector).parameters, "size_divisible", "fixed_size"}
    if unknown := [name for name in options if name not in known]:
        raise UserError(f"{detector.__name__} has no option {unknown[0]!r}{nearest(unknown[0], sorted(known))}")
    network: Any = next((part for part in backbone.modules() if getattr(part, "pretrained_cfg", None)), None)
    about = {} if network is None else network.pretrained_cfg
    normal = {f"image_{name}": list(about[name]) for name in ("mean", "std") if about.get(name)}
    options = {"size_divisible": backbone.reductions[-1], **normal, **options}
    channels = getattr(network, "in_chans", 3)
    if channels != 3 and not {"image_mean", "image_std"} <= options.keys():
        raise UserError(
            f"the network takes images of {channels} channels: give image_mean and image_std, {channels} numbers each"
        )
    return options
