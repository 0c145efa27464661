"""Description of a network's preprocessing, written beside exported networks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import pydantic

from raynas.config import Config, validate
from raynas.data.config import Size
from raynas.documents import Document

if TYPE_CHECKING:
    from raynas.data.load import Data

PREPROCESSING_FILE = "preprocessing.json"
MODES: dict[int, Literal["L", "RGB"]] = {1: "L", 3: "RGB"}


class Preprocessing(Config):
    """The preprocessing of a network's images, and the names of its logits.

    Attributes:
        input: the whole preprocessing as a formula, for readers.
        mode: PIL mode that images are converted to first: `L` (grey) or `RGB`; None if they are no PIL images.
        range: 8-bit pixel values that become 0 and 1.
        pixel_range: values of black and white in images of more than 8 bits, which are scaled to 8 bits first.
        exif: True if images are turned by their EXIF orientation.
        size: height and width; the shorter side is resized to size / crop_pct, antialiased, and the centre is cropped.
        channels, crop_pct, interpolation: see `DataConfig`.
        mean, std: mean and deviation of each channel, for pixels in [0, 1].
        class_names: class names in the order of the logits.
    """

    input: str = "float32 [batch, channels, height, width] = (pixels / 255 - mean) / std"
    mode: Literal["L", "RGB"] | None = None
    range: tuple[float, float] = (0, 255)
    pixel_range: tuple[float, float] | None = None
    exif: Literal["upright", "ignored"] = "ignored"
    channels: int = pydantic.Field(ge=1)
    size: Size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop_pct: float = pydantic.Field(gt=0, le=1)
    interpolation: str
    class_names: tuple[str, ...] = ()

    @pydantic.model_validator(mode="after")
    def _of_each_channel(self) -> Preprocessing:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std must have {self.channels} value(s), one for each channel")
        return self

    def text(self) -> str:
        """Return the text of `preprocessing.json`, of ONNX's metadata and of the extra file in torch's archive."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    def for_network(self, channels: int, classes: int) -> Preprocessing:
        """Return the same for a network with another first convolution or head (see `adapt_channels`)."""
        changes: dict[str, Any] = {} if classes == len(self.class_names) else {"class_names": ()}
        if channels != self.channels:
            for name in ("mean", "std"):
                own = getattr(self, name)
                given = [sum(own) / len(own)] if channels == 1 else [own[i % len(own)] for i in range(channels)]
                changes[name] = tuple(given)
            changes |= {"channels": channels, "mode": MODES.get(channels)}
        return self.model_copy(update=changes)

    def timm_config(self, classes: int) -> dict[str, Any]:
        """Return a `pretrained_cfg`, from which timm builds transforms and loaders.

        timm's scripts convert images to `L` or `RGB` by the channels of `input_size`. `timm.data.create_transform` does
        not: convert them before (`image.convert(mode)`).
        """
        return {
            "architecture": "raynas_vit",
            "input_size": (self.channels, *self.size),
            "fixed_input_size": True,
            "mean": self.mean,
            "std": self.std,
            "crop_pct": self.crop_pct,
            "crop_mode": "center",
            "interpolation": self.interpolation,
            "num_classes": classes,
            **({"label_names": list(self.class_names)} if self.class_names else {}),
        }


def preprocessing_of(data: Data) -> Preprocessing:
    """Return the preprocessing of a dataset's images in evaluation."""
    geometry, reading = data.train.geometry, data.train.reading
    return Preprocessing(
        mode=MODES.get(data.channels),
        channels=data.channels,
        size=data.size,
        mean=data.mean,
        std=data.std,
        crop_pct=geometry.crop_pct,
        interpolation=geometry.interpolation,
        pixel_range=reading.pixel_range,
        exif="upright" if reading.upright else "ignored",
        class_names=data.class_names,
    )


def parse_preprocessing(content: Any, where: str) -> Preprocessing:
    """Return the preprocessing described by the values of a JSON file.

    Raises:
        ConfigError: the values describe none.
    """
    return validate(Preprocessing, Document(content, where))
