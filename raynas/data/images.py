"""Sets of labelled images, their decoding to pixels, and normalisation."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from raynas.data.pool import Source
from raynas.data.reading import AS_STORED, Reading
from raynas.errors import UserError


@dataclass(frozen=True)
class Geometry:
    """Size, channels and resizing of images without augmentation: the settings of timm's evaluation transform."""

    size: tuple[int, int]
    channels: int
    crop_pct: float
    interpolation: str


@dataclass(frozen=True)
class ImageSet:
    """A map-style set of images: `images[i]` is (PIL image or uint8 tensor, label).

    Attributes:
        indices: the set's images in the source, int64 [n].
        labels: int64 [n].
        geometry: size and channels of decoded images.
        reading: conversion of every image before it is resized.
    """

    source: Source
    indices: np.ndarray
    labels: np.ndarray
    geometry: Geometry
    reading: Reading = AS_STORED

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[Image.Image | Tensor, int]:
        return self.source.image(int(self.indices[position])), int(self.labels[position])

    def read(self, position: int, channels: int | None = None) -> Image.Image | Tensor:
        """Read one image before resizing: upright, 8 bits a channel, in the set's or the given number of channels.

        Raises:
            UserError: it cannot be read; the message names it.
        """
        image = self.source.image(int(self.indices[position]))
        return self.reading.read(image, channels or self.geometry.channels, self.where(position))

    def where(self, position: int) -> str:
        """Return an image's name for messages."""
        return self.source.where(int(self.indices[position]))

    @property
    def is_decoded(self) -> bool:
        """True if the source is pixels in memory, of the set's size, channels and crop."""
        own = self.geometry.channels, *self.geometry.size
        if not isinstance(self.source, PixelSource) or self.source.pixels.shape[1:] != own:
            return False
        return self.source.cropped or self.geometry.crop_pct == 1

    def at(self, size: tuple[int, int], channels: int) -> ImageSet:
        """Return the same images in another size (height, width) and number of channels."""
        return replace(self, geometry=replace(self.geometry, size=size, channels=channels))

    def take(self, positions: np.ndarray) -> ImageSet:
        """Return the set of some of these images."""
        return replace(self, indices=self.indices[positions], labels=self.labels[positions])

    @cached_property
    def decoded(self) -> tuple[Tensor, Tensor]:
        """Pixels and labels as `decode` returns them, decoded once and kept: for sets that fit into memory."""
        return decode(self)

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, without what can be decoded again."""
        return {name: value for name, value in self.__dict__.items() if name != "decoded"}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of content (names and sizes for large sets of files), order, labels and geometry."""
        digest = hashlib.sha256(self.source.signature(self.indices))
        digest.update(self.labels.astype("<i8").tobytes())
        digest.update(repr(self.geometry).encode())
        if self.reading != AS_STORED:  # so that the fingerprints of older versions stay
            digest.update(repr(self.reading).encode())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class PixelSource:
    """Images in memory, as pixels uint8 [n, channels, height, width]; `cropped`: after the crop of their set."""

    pixels: Tensor
    dataset: str
    cropped: bool = False

    def image(self, index: int) -> Tensor:
        return self.pixels[index]

    def where(self, index: int) -> str:
        return f"image {index} of {self.dataset}"

    def name(self, index: int) -> str:
        return str(index)

    def keep(self, indices: np.ndarray) -> PixelSource:
        return replace(self, pixels=self.pixels[torch.from_numpy(indices)])

    def signature(self, indices: np.ndarray) -> bytes:
        return hashlib.sha256(self.pixels[torch.from_numpy(indices)].numpy().tobytes()).digest()


def in_memory(pixels: Tensor, labels: np.ndarray) -> ImageSet:
    """Return the set of images in memory, as they are.

    Args:
        pixels: uint8 [n, channels, height, width].
        labels: int64 [n].
    """
    geometry = Geometry((pixels.shape[2], pixels.shape[3]), pixels.shape[1], 1.0, "bicubic")
    return ImageSet(PixelSource(pixels, "the images"), np.arange(len(pixels)), labels, geometry)


def choose_images(total: int, n: int) -> np.ndarray:
    """Return the ascending indices of n of `total` images; a larger n includes those of a smaller.

    Raises:
        UserError: n is not between 1 and `total`.
    """
    if not 1 <= n <= total:
        raise UserError(f"images: {n} wanted, but the search split has {total}; give 1 to {total}")
    return np.sort(np.random.default_rng(0).permutation(total)[:n])


def decode(images: ImageSet, threads: int | None = None) -> tuple[Tensor, Tensor]:
    """Decode all images of a set at once, without augmentation; `raynas.data.held` is for sets of any size.

    Args:
        threads: images decoded at once; by default one for each CPU of the machine.

    Returns:
        Pixels uint8 [n, channels, height, width] (see `decoded_bytes`) and labels int64 [n].

    Raises:
        UserError: an image cannot be read; the message names it.
    """
    labels = torch.from_numpy(images.labels)
    if images.is_decoded:
        assert isinstance(images.source, PixelSource)
        return images.source.pixels[torch.from_numpy(images.indices)], labels
    geometry = images.geometry
    with torch.inference_mode(False):  # which threads are not in, and so could not write to what it makes
        pixels = torch.empty((len(images), geometry.channels, *geometry.size), dtype=torch.uint8)
    transform = evaluation_transform(geometry)

    def fill(position: int) -> None:
        pixels[position] = transform(images.read(position))

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        for _ in pool.map(fill, range(len(images)), chunksize=16):
            pass
    return pixels, labels


def decoded_bytes(images: ImageSet) -> int:
    """Return the size of the decoded set in bytes."""
    height, width = images.geometry.size
    return len(images) * images.geometry.channels * height * width


def evaluation_transform(geometry: Geometry) -> Callable[[Image.Image | Tensor], Tensor]:
    """Return timm's evaluation transform to pixels: shorter side resized, centre cropped, uint8 [c, height, width]."""
    from timm.data import create_transform  # slow import

    return create_transform(
        geometry.size,
        is_training=False,
        crop_pct=geometry.crop_pct,
        interpolation=geometry.interpolation,
        normalize=False,
        mean=(0.0,) * geometry.channels,
        std=(1.0,) * geometry.channels,
    )
