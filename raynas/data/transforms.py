"""Augmentation in two forms: of single images with timm's transforms, or of many small images in memory at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from timm.data import auto_augment
from timm.data.random_erasing import RandomErasing
from timm.data.transforms import MaybePILToTensor
from timm.data.transforms_factory import transforms_imagenet_train
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import functional as F

from raynas.data.augment import AugmentConfig
from raynas.data.images import Geometry, evaluation_transform
from raynas.data.streams import generator, global_streams_kept
from raynas.errors import UserError


def image_transform(
    augment: AugmentConfig, geometry: Geometry, mean: tuple[float, ...], std: tuple[float, ...]
) -> Callable[[Image.Image | Tensor], Tensor]:
    """Return the transform of an image to normalised float32 [channels, height, width]; it uses the global streams.

    Raises:
        UserError: timm does not know the policy, or it does not work on this number of channels.
    """
    steps: list[Callable[[Any], Any]] = []
    if augment.needs_images:
        if geometry.channels not in (1, 3):
            raise UserError(
                f"scale, color_jitter and auto_augment need images of 1 or 3 channels, not {geometry.channels}"
            )
        try:
            crop, change, _ = transforms_imagenet_train(
                geometry.size,
                separate=True,
                scale=augment.scale,
                ratio=augment.ratio,
                hflip=augment.hflip,
                vflip=augment.vflip,
                color_jitter=augment.color_jitter or 0.0,
                force_color_jitter=augment.force_color_jitter,
                auto_augment=augment.auto_augment,
                interpolation=augment.interpolation,
                mean=mean,
                std=std,
            )
        except (AssertionError, ValueError, KeyError) as error:
            raise UserError(f"auto_augment: {augment.auto_augment!r} is not a policy that timm knows") from error
        placed = [_to_pil, crop] if augment.scale is not None else [*_placed(augment, geometry), F.to_pil_image]
        for op in _operations(change):
            if op.aug_fn is auto_augment.posterize:
                op.aug_fn = _posterize
        steps += [*placed, change, MaybePILToTensor()]
    else:
        steps += _placed(augment, geometry)
    steps += [transforms.ConvertImageDtype(torch.float32), transforms.Normalize(mean, std)]
    if augment.reprob:
        steps.append(_erasing(augment))
    return transforms.Compose(steps)


def _operations(change: transforms.Compose) -> Iterator[auto_augment.AugmentOp]:
    """Yield all operations of timm's policies (RandAugment and AugMix have a list, AutoAugment a list of lists)."""
    for policy in change.transforms:
        for entry in getattr(policy, "ops", None) or getattr(policy, "policy", []):
            yield from entry if isinstance(entry, list) else [entry]


def _posterize(image: Image.Image, bits: int, **options: Any) -> Image.Image:
    """Posterize like timm, whose highest strength keeps no bits: formerly black, now an error of Pillow."""
    return auto_augment.posterize(image, bits, **options) if bits else Image.new(image.mode, image.size)


def _placed(augment: AugmentConfig, geometry: Geometry) -> list[Callable[[Any], Any]]:
    """Convert an image to pixels of the final size, then shift and mirror it."""
    steps: list[Callable[[Any], Any]] = [evaluation_transform(geometry)]
    if augment.shift:
        steps.append(transforms.RandomCrop(geometry.size, padding=augment.shift))
    if augment.hflip:
        steps.append(transforms.RandomHorizontalFlip(augment.hflip))
    if augment.vflip:
        steps.append(transforms.RandomVerticalFlip(augment.vflip))
    return steps


def _to_pil(image: Image.Image | Tensor) -> Image.Image:
    return image if isinstance(image, Image.Image) else F.to_pil_image(image)


def _erasing(augment: AugmentConfig) -> RandomErasing:
    return RandomErasing(augment.reprob, mode=augment.remode, max_count=augment.recount, device="cpu")


class BatchAugmentation:
    """Augmentation of small images in memory, drawn for a whole epoch at once, separately for every image."""

    def __init__(self, augment: AugmentConfig, positions: int, seed: int, epoch: int):
        self.augment = augment
        draws = generator(seed, epoch, 1)
        self.offsets = torch.randint(0, 2 * augment.shift + 1, (positions, 2), generator=draws)
        chances = torch.tensor([augment.vflip, augment.hflip])
        self.mirrored = torch.rand((positions, 2), generator=draws) < chances
        self.seeds = torch.randint(2**62, (positions,), generator=draws)

    def move(self, pixels: Tensor, positions: np.ndarray) -> Tensor:
        """Shift and mirror pixels uint8 [batch, channels, height, width]."""
        batch, channels, height, width = pixels.shape
        if self.augment.shift:
            offsets = self.offsets[positions]
            rows = offsets[:, :1] + torch.arange(height)
            columns = offsets[:, 1:] + torch.arange(width)
            padded = torch.nn.functional.pad(pixels, (self.augment.shift,) * 4)
            image, channel = torch.arange(batch)[:, None, None, None], torch.arange(channels)[None, :, None, None]
            pixels = padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
        for axis, chance in ((2, self.augment.vflip), (3, self.augment.hflip)):
            if chance:
                mirrored = self.mirrored[positions, axis - 2].view(-1, 1, 1, 1)
                pixels = torch.where(mirrored, pixels.flip(axis), pixels)
        return pixels

    def erase(self, images: Tensor, positions: np.ndarray) -> Tensor:
        """Apply timm's random erasing to normalised images, in place."""
        if self.augment.reprob:
            erasing = _erasing(self.augment)
            with global_streams_kept():
                for image, seed in zip(images, self.seeds[positions].tolist(), strict=True):
                    random.seed(seed)  # the two streams that timm's erasing draws from
                    torch.default_generator.manual_seed(seed)
                    erasing(image)
        return images
