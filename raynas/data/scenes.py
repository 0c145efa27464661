"""Scenes: real digits on cluttered canvases, for segmentation and detection; boxes, classes and masks are known.

Several whole digits lie on a canvas among pieces of other digits, which look like digits and are none. A scene of the
test split holds only digits that no scene of the training split holds.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pydantic
import torch
from torch import Tensor

from raynas.data.canvas import DIGITS, INK, Split, background, digits_of, drawn, paste, random_place
from raynas.data.config import CanvasConfig
from raynas.errors import UserError

VERSION = 1
"""Raised when the same settings give other scenes."""

CLASSES = ("background", *DIGITS)
"""Names of classes by label: a digit's label is one more than the digit."""

PLACES = 20
"""Places that are tried for a digit before it is left out."""


class ScenesConfig(CanvasConfig):
    """Settings of scenes.

    Attributes:
        objects: fewest and most digits in a scene.
    """

    objects: tuple[int, int] = (2, 4)

    @pydantic.model_validator(mode="after")
    def _some_objects(self) -> ScenesConfig:
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
    digits, labels = digits_of(config, split)
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
    canvas = background(config, digits, rng)
    instances = np.zeros(config.size, dtype=np.uint8)
    found: list[int] = []
    for index in rng.integers(len(digits), size=rng.integers(config.objects[0], config.objects[1] + 1)):
        digit = drawn(config, digits[index], rng)
        for _ in range(PLACES):
            place = random_place(canvas.shape, digit.shape, rng)
            if not instances[place].any():  # squares that hold another digit's ink are not taken: all digits are whole
                paste(canvas, place, digit)
                found.append(1 + int(labels[index]))
                instances[place][digit >= INK] = len(found)
                break
    return canvas, instances, found
