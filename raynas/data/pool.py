"""What every reader of datasets returns: images and their labels, not yet split or sized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from PIL import Image
from torch import Tensor


class Source(Protocol):
    """Where images come from: embedded arrays, files, Parquet rows or somebody's torch dataset."""

    def image(self, index: int) -> Image.Image | Tensor:
        """A PIL image of any size and mode, or a uint8 tensor [channels, height, width]."""

    def where(self, index: int) -> str:
        """The image's name in messages."""

    def name(self, index: int) -> str:
        """The image's name within the dataset, the same wherever the dataset lies."""

    def keep(self, indices: np.ndarray) -> Source:
        """A source of these images alone (ascending), numbered anew."""

    def signature(self, indices: np.ndarray) -> bytes:
        """What identifies the content of these images, cheaply."""


@dataclass(frozen=True)
class Pool:
    """Images from which splits are cut.

    Attributes:
        source: images by number, 0..n-1.
        labels: int64 [n].
    """

    source: Source
    labels: np.ndarray

    def keep(self, indices: np.ndarray) -> Pool:
        """Some of the images, in a source of their own from which the others cannot be reached."""
        return Pool(self.source.keep(indices), self.labels[indices])


def spread(count: int) -> np.ndarray:
    """Return up to 16 positions spread evenly over 0..count-1."""
    return np.unique(np.linspace(0, count - 1, 16).astype(np.int64))
