"""Scenes: real digits on cluttered canvases, for segmentation and detection; boxes, classes and masks are known.

Several whole digits lie on a canvas among pieces of other digits, which look like digits and are none. A scene of the
test split holds only digits that no scene of the training split holds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pydantic
import torch
from PIL import Image
from torch import Tensor

from raynas.config import Config, Seed
from raynas.data.embedded import LOADERS
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut
from raynas.errors import UserError

Split = Literal["train", "test"]

VERSION = 1
"""Raised when the same settings give other scenes."""

CLASSES = ("background", *map(str, range(10)))
"""Names of classes by label: a digit's label is one more than the digit."""

INK = 64
"""Brightness from which a digit's pixel belongs to its mask."""

PLACES = 20
"""Places that are tried for a digit before it is left out."""


class ScenesConfig(Config):
    """Settings of scenes.

    Attributes:
        digits: dataset that the digits come from: `digits` (8 x 8 pixels, enlarged) or `mnist5k`.
        size: height and width of a canvas in pixels.
        train, test: number of scenes.
        objects: fewest and most digits in a scene.
        side: fewest and most pixels on the side of a digit's square.
        pieces: number of pieces of other digits in a scene.
        noise: largest brightness of the noise under everything.
        seed: seed of the scenes.
    """

    digits: Literal["digits", "mnist5k"] = "digits"
    size: tuple[int, int] = (64, 64)
    train: int = pydantic.Field(default=2000, ge=1, le=10**5)
    test: int = pydantic.Field(default=500, ge=1, le=10**5)
    objects: tuple[int, int] = (2, 4)
    side: tuple[int, int] = (14, 28)
    pieces: int = pydantic.Field(default=12, ge=0, le=1000)
    noise: int = pydantic.Field(default=60, ge=0, le=255)
    seed: Seed = 0

    @pydantic.model_validator(mode="after")
    def _fit(self) -> ScenesConfig:
        if not 4 <= self.side[0] <= self.side[1] <= min(self.size) <= max(self.size) <= 2**12:
            raise ValueError(f"digits of {self.side[0]} to {self.side[1]} pixels do not fit: 4 <= side <= size <= 4096")
        if not 1 <= self.objects[0] <= self.objects[1] <= 100:
            raise ValueError(f"{self.objects[0]} to {self.objects[1]} digits in a scene: give 1 to 100")
        return self


@dataclass(frozen=True)
class Scenes:
    """The scenes of one split.

    Attributes:
        pixels: uint8 [n, 1, height, width].
        instances: uint8 [n, height, width], 0 for background, k for the scene's k-th digit.
        labels: for each scene the labels of its digits, int64 [digits]; see `CLASSES`.
    """

    pixels: Tensor
    instances: Tensor
    labels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def semantic(self) -> Tensor:
        """Label of every pixel, int64 [n, height, width]."""
        tables = torch.zeros(len(self), 1 + max(map(len, self.labels)), dtype=torch.int64)
        for row, labels in zip(tables, self.labels, strict=True):
            row[1 : 1 + len(labels)] = labels
        return tables.gather(1, self.instances.flatten(1).long()).view(self.instances.shape)

    def target(self, index: int) -> dict[str, Tensor]:
        """Return the digits of a scene as torchvision's detectors take them.

        Returns:
            `boxes` float32 [digits, 4], the left, upper, right and lower edges in pixels; `labels` int64 [digits]; and
            `masks` uint8 [digits, height, width].
        """
        masks = self.instances[index] == torch.arange(1, 1 + len(self.labels[index]), dtype=torch.uint8)[:, None, None]
        edges = [_edges(masks.any(dim)) for dim in (2, 1)]  # of rows and of columns
        boxes = torch.stack([edges[1][0], edges[0][0], edges[1][1], edges[0][1]], dim=1)
        return {"boxes": boxes.float(), "labels": self.labels[index], "masks": masks.to(torch.uint8)}

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the content."""
        digest = hashlib.sha256()
        for each in (self.pixels, self.instances, torch.cat(self.labels)):
            digest.update(repr(tuple(each.shape)).encode() + each.numpy().tobytes())
        return digest.hexdigest()[:16]


def _edges(occupied: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first place that is occupied in each row [rows, places], and the one behind the last."""
    places = occupied.int()
    return places.argmax(1), places.shape[1] - places.flip(1).argmax(1)


def make_scenes(config: ScenesConfig, split: Split) -> Scenes:
    """Make the scenes of one split; the same settings give the same scenes.

    Raises:
        UserError: there is no such split, or the digits' package is not installed.
    """
    if split not in ("train", "test"):
        raise UserError(f"no split {split!r} of scenes: train, test")
    pixels, labels = LOADERS[config.digits]()
    kept, off = cut(labels, TEST_FRACTION, TEST_SEED, CLASSES[1:], "test")
    of_split = kept if split == "train" else off
    digits, labels = pixels[of_split, 0], labels[of_split]
    count = config.train if split == "train" else config.test
    rng = np.random.default_rng([VERSION, config.seed, split == "test"])
    made = [_scene(config, digits, labels, rng) for _ in range(count)]
    return Scenes(
        torch.from_numpy(np.stack([canvas for canvas, _, _ in made]))[:, None],
        torch.from_numpy(np.stack([instances for _, instances, _ in made])),
        tuple(torch.tensor(found) for _, _, found in made),
    )


def _scene(
    config: ScenesConfig, digits: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return canvas and instances [height, width], and the labels of a scene's digits."""
    canvas = rng.integers(0, config.noise + 1, config.size, dtype=np.uint8)
    instances = np.zeros(config.size, dtype=np.uint8)
    for index in rng.integers(len(digits), size=config.pieces):
        piece = _piece(_drawn(config, digits[index], rng), rng)
        place = _place(canvas.shape, piece.shape, rng)
        canvas[place] = np.maximum(canvas[place], piece)
    found: list[int] = []
    for index in rng.integers(len(digits), size=rng.integers(config.objects[0], config.objects[1] + 1)):
        digit = _drawn(config, digits[index], rng)
        for _ in range(PLACES):
            place = _place(canvas.shape, digit.shape, rng)
            if not instances[place].any():  # squares that hold another digit's ink are not taken: all digits are whole
                ink = digit >= INK
                canvas[place] = np.where(ink, digit, np.maximum(canvas[place], digit))
                found.append(1 + int(labels[index]))
                instances[place][ink] = len(found)
                break
    return canvas, instances, found


def _drawn(config: ScenesConfig, digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a digit at a random size and contrast, as bright at least as its mask needs."""
    side = int(rng.integers(config.side[0], config.side[1] + 1))
    large = np.asarray(Image.fromarray(digit).resize((side, side), Image.Resampling.BILINEAR), dtype=np.float64)
    brightest = rng.uniform(160, 255)
    return np.rint(large * (brightest / max(large.max(), 1))).astype(np.uint8)


def _piece(digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a rectangle out of a digit, a third to two thirds of each side."""
    lengths = [int(rng.integers(side // 3, 2 * side // 3 + 1)) for side in digit.shape]
    return digit[_place(digit.shape, (lengths[0], lengths[1]), rng)]


def _place(outer: tuple[int, ...], inner: tuple[int, ...], rng: np.random.Generator) -> tuple[slice, slice]:
    """Return a random place of a rectangle inside another."""
    starts = [int(rng.integers(whole - part + 1)) for whole, part in zip(outer, inner, strict=True)]
    return slice(starts[0], starts[0] + inner[0]), slice(starts[1], starts[1] + inner[1])
