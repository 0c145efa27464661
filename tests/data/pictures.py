"""Small datasets written by Pillow."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image


def picture(k: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    """A random image (width, height), always the same for one k."""
    values = np.random.default_rng(k).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(k: int, mode: str = "RGB") -> bytes:
    """The PNG file of `picture(k)`."""
    buffer = io.BytesIO()
    picture(k, mode=mode).save(buffer, "PNG")
    return buffer.getvalue()


def write_classes(
    root: Path, counts: dict[str, int], first: int = 0, size: tuple[int, int] = (12, 10), mode: str = "RGB"
) -> int:
    """Write `root/<class>/<k>.png`, k counting on over all classes; the next k."""
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for k in range(first, first + count):
            picture(k, size, mode).save(root / name / f"{k:03}.png")
        first += count
    return first
