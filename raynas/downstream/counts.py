"""Parameters and multiply-accumulates of detectors and segmenters, without computing anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models.detection import FCOS, MaskRCNN, RetinaNet

from raynas.errors import UserError
from raynas.nets.device import evaluating
from raynas.nets.supernet import Supernet

PROPOSALS = 1000
MASKS = 100
"""Boxes that Mask R-CNN's heads classify, and draw masks of, in an image, as mmdet counts them."""


@torch.no_grad()
def counts(
    model: nn.Module, size: tuple[int, int], channels: int | None = None, proposals: int = PROPOSALS, masks: int = MASKS
) -> dict[str, int]:
    """Count parameters, and the multiply-accumulates of one image.

    Convolutions, linear layers and the products of attention are counted; norms, activations, resizing, and the choice
    of boxes are not. Build the model under `torch.device("meta")`, and it takes neither memory nor time.

    Args:
        model: a segmenter, a detector of this package, or any module that maps images.
        size: height and width of the image in pixels, as it comes to the backbone.
        channels: number of image channels; by default the network's, else three.
        proposals, masks: boxes that Mask R-CNN's heads get.

    Returns:
        `params`, `macs`, and `products`, those of `macs` that are products of attention, which many counters leave out.

    Raises:
        UserError: the size is not a height and a width.
    """
    if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
        raise UserError(f"size {tuple(size)}: give height and width in pixels")
    like = next(model.parameters())
    channels = channels or next((part.in_chans for part in model.modules() if isinstance(part, Supernet)), 3)
    # Two images, because norms of a map of one token refuse a single one.
    images = torch.empty(2, channels, *size, device=like.device, dtype=like.dtype)
    with evaluating(model), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        _run(model, images, 2 * proposals, 2 * masks)
    products = counter.get_flop_counts()["Global"].get(torch.ops.aten.bmm, 0)
    return {
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "macs": counter.get_total_flops() // 4,
        "products": products // 4,
    }


def _run(model: Any, images: Tensor, proposals: int, masks: int) -> None:
    """Run everything that has multiply-accumulates."""
    if isinstance(model, RetinaNet | FCOS):
        model.head(list(model.backbone(images).values()))
    elif isinstance(model, MaskRCNN):
        maps, heads = model.backbone(images), model.roi_heads
        model.rpn.head(list(maps.values()))

        def regions(count: int, side: int) -> Tensor:
            return images.new_empty(count, model.backbone.out_channels, side, side)

        heads.box_predictor(heads.box_head(regions(proposals, heads.box_roi_pool.output_size[0])))
        heads.mask_predictor(heads.mask_head(regions(masks, heads.mask_roi_pool.output_size[0])))
    else:
        model(images)
