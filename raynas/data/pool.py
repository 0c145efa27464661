"""Images and labels as readers return them, before splitting and resizing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image
from torch import Tensor


class Source(Protocol):
    """A source of images: embedded arrays, files, Parquet rows or a user's torch dataset."""

    def image(self, index: int) -> Image.Image | Tensor:
        """Return an image: of PIL, of any size and mode, or a uint8 tensor [channels, height, width]."""

    def where(self, index: int) -> str:
        """Return the image's name for messages."""

    def name(self, index: int) -> str:
        """Return the image's name within the dataset, independent of the dataset's place."""

    def keep(self, indices: np.ndarray) -> Source:
        """Return a source of these images only (ascending), renumbered."""

    def signature(self, indices: np.ndarray) -> bytes:
        """Return text that identifies the content of these images, cheaply."""


@dataclass(frozen=True)
class Pool:
    """Images from which splits are cut.

    Attributes:
        source: the images, numbered 0..n-1.
        labels: int64 [n].
    """

    source: Source
    labels: np.ndarray

    def keep(self, indices: np.ndarray) -> Pool:
        """Return some of the images, in a source without the others."""
        return Pool(self.source.keep(indices), self.labels[indices])


def spread(count: int) -> np.ndarray:
    """Return up to 16 positions spread evenly over 0..count-1."""
    return np.unique(np.linspace(0, count - 1, 16).astype(np.int64))
