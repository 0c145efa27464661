"""Training batches whose order and augmentation depend on (seed, epoch, position) only."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import numpy as np
import torch
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from raynas.data.augment import AugmentConfig
from raynas.data.images import ImageSet, decode, normalise
from raynas.data.load import Data
from raynas.errors import UserError

log = logging.getLogger(__name__)


def epoch_order(images: int, seed: int, epoch: int, repeats: int = 1) -> np.ndarray:
    """The images of an epoch in the order of the whole job, int64 [images].

    With repeats the copies of an image stand side by side, so that interleaved ranks get one each, and the epoch keeps
    its length: it then holds `images / repeats` different ones (as DeiT's and timm's RepeatAugSampler).
    """
    generator = torch.Generator().manual_seed(_seed(seed, epoch))
    return torch.randperm(images, generator=generator).numpy().repeat(repeats)[:images]


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


class TrainLoader:
    """Batches of augmented training images for one rank.

    Step k of an epoch takes the next `batch_size * world_size` images of `epoch_order`; rank r gets every
    world_size-th of them from the r-th on. So the images of a step, and their augmentation, are the same whatever the
    number of ranks that share them. Images that do not fill a last step sit the epoch out (others each epoch), so no
    image is seen twice. A set smaller than one step makes one smaller step an epoch, which is logged.

    Args:
        data: the dataset.
        augment: augmentation of single images.
        batch_size: images per rank and step.
        seed: of order and augmentation.
        rank, world_size: this rank's place.
        train_on: `train` or `train+search`.

    Raises:
        UserError: fewer images than ranks.
    """

    def __init__(
        self,
        data: Data,
        augment: AugmentConfig | None = None,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        train_on: str = "train",
    ):
        self.data = data
        self.images: ImageSet = data.images(train_on)
        self.augment = augment or AugmentConfig()
        self.seed, self.rank, self.world_size = seed, rank, world_size
        count = len(self.images)
        if count < world_size:
            raise UserError(f"{count} training images cannot be shared by {world_size} workers; use fewer workers")
        self.batch_size = min(batch_size, count // world_size)
        self.steps = count // (self.batch_size * world_size)  # per epoch
        if self.batch_size < batch_size:
            log.warning(
                "%d training images are fewer than one step of %d x %d: using %d x %d",
                *(count, world_size, batch_size, world_size, self.batch_size),
            )
        self._pixels, self._labels = decode(self.images)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of one epoch, from step `skip` on: float32 [batch, channels, height, width] and labels int64 [batch].

        Skipped images are not decoded; the batches that follow are those of an epoch without skipping.
        """
        order = epoch_order(len(self.images), self.seed, epoch, self.augment.repeats)
        draws = _Draws(len(order), self.augment, self.seed, epoch)
        step = self.batch_size * self.world_size
        for first in range(skip * step, self.steps * step, step):
            positions = np.arange(first + self.rank, first + step, self.world_size)
            chosen = torch.from_numpy(order[positions])
            pixels = draws.move(self._pixels[chosen], positions)
            yield draws.erase(normalise(pixels, self.data), positions), self._labels[chosen]


class _Draws:
    """The random decisions of one epoch for images in memory, made at once for all positions."""

    def __init__(self, count: int, augment: AugmentConfig, seed: int, epoch: int):
        self.augment, self.seed, self.epoch = augment, seed, epoch
        generator = torch.Generator().manual_seed(_seed(seed, epoch, 1))
        self.offsets = torch.randint(0, 2 * augment.shift + 1, (count, 2), generator=generator)
        self.mirrored = torch.rand((count, 2), generator=generator) < torch.tensor([augment.vflip, augment.hflip])

    def move(self, pixels: Tensor, positions: np.ndarray) -> Tensor:
        """Shift and mirror pixels [batch, channels, height, width], each image by its own draw."""
        batch, channels, height, width = pixels.shape
        if self.augment.shift:
            offsets = self.offsets[positions]
            rows = offsets[:, :1] + torch.arange(height)
            columns = offsets[:, 1:] + torch.arange(width)
            padded = torch.nn.functional.pad(pixels, (self.augment.shift,) * 4)
            image, channel = torch.arange(batch)[:, None, None, None], torch.arange(channels)[None, :, None, None]
            pixels = padded[image, channel, rows[:, None, :, None], columns[:, None, None, :]]
        for axis, on in ((2, self.augment.vflip), (3, self.augment.hflip)):
            if on:
                mirrored = self.mirrored[positions, axis - 2].view(-1, 1, 1, 1)
                pixels = torch.where(mirrored, pixels.flip(axis), pixels)
        return pixels

    def erase(self, images: Tensor, positions: np.ndarray) -> Tensor:
        """timm's random erasing on normalised images, in place."""
        if not self.augment.reprob:
            return images
        erasing = RandomErasing(
            self.augment.reprob, mode=self.augment.remode, max_count=self.augment.recount, device="cpu"
        )
        states = random.getstate(), torch.get_rng_state()
        try:
            for image, position in zip(images, positions.tolist(), strict=True):
                seed = _seed(self.seed, self.epoch, 2, position)
                random.seed(seed)
                torch.default_generator.manual_seed(seed)
                erasing(image)
        finally:
            random.setstate(states[0])
            torch.set_rng_state(states[1])
        return images


def train_batches(
    data: Data,
    augment: AugmentConfig | None = None,
    *,
    epoch: int,
    seed: int,
    batch_size: int,
    rank: int = 0,
    world_size: int = 1,
    skip: int = 0,
    train_on: str = "train",
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of a `TrainLoader`, which keeps what it decoded when there are more."""
    loader = TrainLoader(
        data, augment, batch_size=batch_size, seed=seed, rank=rank, world_size=world_size, train_on=train_on
    )
    return loader.epoch(epoch, skip)
