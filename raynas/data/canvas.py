"""Canvases for digits: noise, and pieces of other digits, which look like digits and are none."""

from __future__ import annotations

from typing import Literal

import numpy as np
from PIL import Image

from raynas.data.config import CanvasConfig
from raynas.data.embedded import LOADERS
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut

Split = Literal["train", "test"]

DIGITS = tuple(map(str, range(10)))
"""Names of the classes of digits."""

INK = 64
"""Brightness from which a digit's pixel hides what lies under it, and belongs to its mask."""


def digits_of(config: CanvasConfig, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of one split, none of which is in the other: uint8 [n, side, side], and labels int64 [n].

    Raises:
        UserError: the digits' package is not installed.
    """
    pixels, labels = LOADERS[config.digits]()
    kept, off = cut(labels, TEST_FRACTION, TEST_SEED, DIGITS, "test")
    of_split = kept if split == "train" else off
    return pixels[of_split, 0], labels[of_split]


def background(config: CanvasConfig, digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a canvas of noise and pieces of some of the digits, uint8 [height, width]."""
    canvas = rng.integers(0, config.noise + 1, config.size, dtype=np.uint8)
    for index in rng.integers(len(digits), size=config.pieces):
        piece = _piece(drawn(config, digits[index], rng), rng)
        place = random_place(canvas.shape, piece.shape, rng)
        canvas[place] = np.maximum(canvas[place], piece)
    return canvas


def drawn(config: CanvasConfig, digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a digit at a random size and contrast, as bright at least as its mask needs."""
    side = int(rng.integers(config.side[0], config.side[1] + 1))
    large = np.asarray(Image.fromarray(digit).resize((side, side), Image.Resampling.BILINEAR), dtype=np.float64)
    brightest = rng.uniform(160, 255)
    return np.rint(large * (brightest / max(large.max(), 1))).astype(np.uint8)


def paste(canvas: np.ndarray, place: tuple[slice, slice], digit: np.ndarray) -> None:
    """Put a digit on a canvas: its ink hides what was there, its edges do not."""
    canvas[place] = np.where(digit >= INK, digit, np.maximum(canvas[place], digit))


def random_place(outer: tuple[int, ...], inner: tuple[int, ...], rng: np.random.Generator) -> tuple[slice, slice]:
    """Return a random place of a rectangle inside another."""
    starts = [int(rng.integers(whole - part + 1)) for whole, part in zip(outer, inner, strict=True)]
    return slice(starts[0], starts[0] + inner[0]), slice(starts[1], starts[1] + inner[1])


def _piece(digit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a rectangle out of a digit, a third to two thirds of each side."""
    lengths = [int(rng.integers(side // 3, 2 * side // 3 + 1)) for side in digit.shape]
    return digit[random_place(digit.shape, (lengths[0], lengths[1]), rng)]
