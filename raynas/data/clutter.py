"""Clutter: one real digit an image, anywhere and of any size, among pieces of other digits; the digit is the class.

docs/data.md is its datasheet: sources, splits, and what small networks reach.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from raynas.data.canvas import DIGITS, Split, background, digits_of, drawn, paste, random_place
from raynas.data.config import ClutterConfig

VERSION = 1
"""Raised when the same settings give other images."""


@lru_cache(maxsize=4)  # making some thousand images takes seconds
def made_splits(config: ClutterConfig) -> dict[Split, tuple[np.ndarray, np.ndarray]]:
    """Return pixels and labels of both splits, as `make_clutter` makes them."""
    return {"train": make_clutter(config, "train"), "test": make_clutter(config, "test")}


def make_clutter(config: ClutterConfig, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Make the images of one split: pixels uint8 [n, 1, height, width], and labels int64 [n].

    The same settings give the same images, and fewer images are the first of more. Classes take turns. Every digit
    is in one image before any is in two.

    Raises:
        UserError: the digits' package is not installed.
    """
    digits, labels = digits_of(config, split)
    rng = np.random.default_rng([VERSION, config.seed, split == "test"])
    order = _in_turn(labels, config.train if split == "train" else config.test, rng)
    pixels = np.stack([_image(config, digits, digits[index], rng) for index in order])
    return pixels[:, None], labels[order]


def _in_turn(labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return places of digits [count]: of each class in turn, in random order, all of them before any again."""
    order = np.empty(count, dtype=np.int64)
    for label, of_class in enumerate(rng.spawn(len(DIGITS))):
        places = np.flatnonzero(labels == label)
        turns = len(range(label, count, len(DIGITS)))
        rounds = [of_class.permutation(places) for _ in range(0, turns, len(places))]
        order[label :: len(DIGITS)] = np.concatenate([places[:0], *rounds])[:turns]
    return order


def _image(config: ClutterConfig, digits: np.ndarray, digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a canvas [height, width] with one digit, which lies on top."""
    canvas = background(config, digits, rng)
    large = drawn(config, digit, rng)
    paste(canvas, random_place(canvas.shape, large.shape, rng), large)
    return canvas
