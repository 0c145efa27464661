"""Conversion of stored images to 8 bits a channel, upright, in grey or RGB."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from raynas.data.files import HIGH_BYTES, STATED_RANGE
from raynas.errors import UserError

SIXTEEN_BITS = (0.0, 65535.0)


class RangeUnknown(UserError):
    """An image has more than 8 bits a channel, and the values of black and white are unknown.

    Attributes:
        low, high: the least and greatest value in it; None if unknown.
    """

    def __init__(self, message: str, low: float | None = None, high: float | None = None):
        super().__init__(message)
        self.low, self.high = low, high


@dataclass(frozen=True)
class Reading:
    """Conversion of every image before it is resized.

    Attributes:
        upright: True to turn images by their EXIF orientation.
        pixel_range: the values of black and white in images of more than 8 bits a channel.
    """

    upright: bool = False
    pixel_range: tuple[float, float] | None = None

    def placed(self, image: Image.Image | Tensor) -> Image.Image | Tensor:
        """Return the image, upright if `upright` is set."""
        if not self.upright or isinstance(image, Tensor) or orientation(image) == 1:
            return image
        info = image.info
        image = ImageOps.exif_transpose(image)
        image.info = {**image.info, **{key: info[key] for key in (STATED_RANGE, HIGH_BYTES) if key in info}}
        return image

    def read(self, image: Image.Image | Tensor, channels: int, where: str) -> Image.Image | Tensor:
        """Return an image upright, in grey (1) or RGB (3); a tensor [c, height, width] may have any number of channels.

        Raises:
            RangeUnknown: it has more than 8 bits a channel, and no range is known.
            UserError: it cannot be given that number of channels.
        """
        if isinstance(image, Tensor):
            return _with_channels(image, channels, where)
        if channels not in (1, 3):
            raise UserError(f"{where}: images can have 1 or 3 channels, not {channels}")
        image = self.in_8_bits(self.placed(image), where)
        if image.mode == "LAB":
            raise UserError(f"{where}: LAB colours are not read; convert it to RGB")
        try:
            return image.convert("L" if channels == 1 else "RGB")
        except (ValueError, KeyError) as error:
            raise UserError(f"{where}: {image.mode} images are not read; convert it to RGB or grey") from error

    def in_8_bits(self, image: Image.Image | Tensor, where: str) -> Image.Image:
        """Return a Pillow image of 8 bits; values of more bits are scaled, black to 0 and white to 255."""
        assert isinstance(image, Image.Image)
        if image.info.get(HIGH_BYTES) and self.pixel_range != SIXTEEN_BITS:
            raise RangeUnknown(
                f"{where}: colours of more than 8 bits a channel, of which Pillow reads the high bytes: convert it to "
                "8 bits a channel, or, if its values fill 16 bits, say so: data.pixel_range=[0, 65535]"
            )
        if not is_deep(image):
            return image
        values = np.asarray(image, dtype=np.float64)
        return Image.fromarray(spread_values(values, image.info.get(STATED_RANGE, self.pixel_range), where))


AS_STORED = Reading()
"""Reading without any conversion: of older versions, and of pixels that are already in memory."""


def spread_values(values: np.ndarray, pixel_range: tuple[float, float] | None, where: str) -> np.ndarray:
    """Convert values of any range to uint8: black and below to 0, white and above to 255.

    Raises:
        RangeUnknown: there is no range.
        UserError: a value is NaN or infinite.
    """
    if not np.isfinite(values).all():
        raise UserError(f"{where}: the image has NaN or infinite pixels")
    if pixel_range is None:
        low, high = float(values.min()), float(values.max())
        raise RangeUnknown(
            f"{where}: values from {low:g} to {high:g}, more than 8 bits: say which are black and white, such as "
            f"data.pixel_range=[{likely_range(low, high)}]",
            low,
            high,
        )
    black, white = pixel_range
    return np.rint((values - black) * (255 / (white - black))).clip(0, 255).astype(np.uint8)


def likely_range(low: float, high: float) -> str:
    """Return the likely range of values as text: of 8, 10, 12, 14 or 16 bits, or the values' own."""
    if low >= 0 and float(high).is_integer():
        for bits in (8, 10, 12, 14, 16):
            if high < 2**bits:
                return f"0, {2**bits - 1}"
    return f"{low:g}, {high:g}"


def is_deep(image: Image.Image) -> bool:
    """Return True if an image is grey with more than 8 bits."""
    return image.mode.startswith(("I", "F"))


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation: 1 for upright, and if there is none that can be read."""
    try:
        value = image.getexif().get(274, 1)
    except Exception:  # damaged EXIF data, on which Pillow raises anything: nothing can be read from it
        return 1
    return value if value in range(1, 9) else 1


def channels_of(image: Image.Image | Tensor) -> int:
    """Return 1 for grey, 3 for colours, and a tensor's own number."""
    if isinstance(image, Tensor):
        return image.shape[0]
    return 1 if image.mode == "1" or (image.mode.startswith(("L", "I", "F")) and image.mode != "LAB") else 3


def size_of(image: Image.Image | Tensor) -> tuple[int, int]:
    """Return (height, width)."""
    return (image.height, image.width) if isinstance(image, Image.Image) else (image.shape[1], image.shape[2])


def _with_channels(image: Tensor, channels: int, where: str) -> Tensor:
    if image.shape[0] == channels:
        return image
    if image.shape[0] == 1:
        return image.expand(channels, -1, -1)
    if image.shape[0] == 3 and channels == 1:
        from torchvision.transforms.functional import rgb_to_grayscale  # slow import

        return rgb_to_grayscale(image)
    raise UserError(f"{where}: has {image.shape[0]} channels where {channels} are wanted")
