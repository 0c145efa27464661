"""Settings of a dataset: its images, splits and image size."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from raynas.config import Config, Seed
from raynas.locations import is_uri, refuse_credentials

EMBEDDED = ("digits", "mnist5k", "clutter")
PAPERS_CROP_FROM = 96  # pixels of the shorter side

LATER = ("clutter", "exif", "pixel_range", "class_order", "skip", "search_per_class", "mean", "std")
"""Settings that are written where set, as older runs compare."""

Pixels = Annotated[int, pydantic.Field(ge=1, le=2**14)]
Size = tuple[Pixels, Pixels]
Side = Annotated[int, pydantic.Field(ge=24, le=64)]  # of a canvas of clutter


def square(size: Any) -> Any:
    """Expand one number to height and width."""
    if isinstance(size, str) and size != "own":
        raise ValueError("expected a number of pixels or [height, width]")
    return (size, size) if isinstance(size, int) and not isinstance(size, bool) else size


def absolute(path: Any) -> Any:
    """Make what names a file or folder absolute, and refuse a URI with credentials; leave other values as they are."""
    path = os.fspath(path) if isinstance(path, os.PathLike) else path
    if isinstance(path, str):
        refuse_credentials(path)
    local = isinstance(path, str) and not is_uri(path) and os.path.exists(path)
    return os.path.abspath(path) if local else path


class CanvasConfig(Config):
    """Settings of canvases with digits among pieces of other digits.

    Attributes:
        digits: dataset that the digits come from: `digits` (8 x 8 pixels, enlarged) or `mnist5k`.
        size: height and width of a canvas in pixels, or one number for both.
        train, test: number of images.
        side: fewest and most pixels on the side of a digit's square.
        pieces: number of pieces of other digits on a canvas.
        noise: largest brightness of the noise under everything.
        seed: seed of everything that is drawn; which digits are for the test images is fixed.
    """

    digits: Literal["digits", "mnist5k"] = "digits"
    size: tuple[int, int] = (64, 64)
    train: int = pydantic.Field(default=2000, ge=1, le=10**5)
    test: int = pydantic.Field(default=500, ge=1, le=10**5)
    side: tuple[int, int] = (14, 28)
    pieces: int = pydantic.Field(default=12, ge=0, le=1000)
    noise: int = pydantic.Field(default=60, ge=0, le=255)
    seed: Seed = 0

    _square = pydantic.field_validator("size", mode="before")(square)

    @pydantic.model_validator(mode="after")
    def _fit(self) -> CanvasConfig:
        least, most = self.side
        if not 4 <= least <= most <= min(self.size) <= max(self.size) <= 2**12:
            height, width = self.size
            raise ValueError(
                f"digits of {least} to {most} pixels do not fit canvases of {height} x {width}: side is the fewest and "
                "the most pixels, from 4 to the canvas's shorter side (of 4096 at most)"
            )
        return self


class ClutterConfig(CanvasConfig):
    """Settings of the dataset `clutter`."""

    digits: Literal["digits", "mnist5k"] = "mnist5k"
    size: tuple[Side, Side] = (24, 24)
    train: int = pydantic.Field(default=4000, ge=100, le=10**5)
    test: int = pydantic.Field(default=2000, ge=100, le=10**5)
    side: tuple[int, int] = (20, 24)
    pieces: int = pydantic.Field(default=2, ge=0, le=1000)
    noise: int = pydantic.Field(default=0, ge=0, le=255)


class DataConfig(Config):
    """A dataset by name, with its splits and image size; a string alone is its name.

    Attributes:
        name: the dataset; left out in a preset that is run with `--data`. `digits`, `mnist5k`, `clutter`, a folder of
            class folders, a Parquet file or folder, either of them by path or by pyarrow filesystem URI (`s3://...`,
            `gs://...`, `file://...`), or `module:function` returning a map-style torch dataset or a pair (train, test)
            of them. An existing relative path is made absolute, since workers start elsewhere; on a cluster every node
            must see the path.
        search_fraction: share of the training images of each class that is kept for scoring subnets.
        search_per_class: most of these images of one class; None for no limit. Every scoring replica reads all of them
            for each subnet.
        seed: seed of the split into training and search images. Test images are split off with a fixed seed, so that no
            setting can move a test image into training.
        size: (height, width) of the network's input, or one number for both; `own` for the common size of all images.
            By default the dataset's size (embedded and tensor datasets), else the space's, else 224. All images,
            embedded ones too, are resized by timm's evaluation transform: antialiased, with `interpolation`.
        channels: 1 (grey) or 3 (RGB); `own` for the images' own. By default the dataset's (embedded and tensor
            datasets), else the space's, else 3. Images are converted; transparency is dropped.
        crop_pct: share of the resized image that the centre crop keeps in evaluation (timm's `crop_pct`); by default
            0.875 from 96 pixels up, and 1.0 below.
        interpolation: resizing in evaluation: `bilinear` or `bicubic`.
        mean, std: mean and deviation of each channel that pixels in [0, 1] are normalised with, as a trained model
            wants them; by default those of the training images if they are few and small, else ImageNet's.
        image_column, label_column: columns of Parquet files; by default found by type and name.
        exif: `upright` turns images by their EXIF orientation (the default); `ignored` does not, like other tools and
            older versions.
        pixel_range: the values of black and white in images of more than 8 bits a channel, such as [0, 4095]; values
            outside become black or white. Such images are refused without it, since files do not state their range.
        class_order: order of class names that are text: `plain`, character by character (1, 10, 2), like torchvision;
            or `natural` (1, 2, 10), like timm. By default plain.
        skip: names of images in the dataset to leave out; `unreadable` for all that cannot be read, which are found
            before training and then recorded by name.
        clutter: settings of the dataset `clutter`, which is made with them; its test images are made apart.
    """

    name: str = ""
    search_fraction: float = pydantic.Field(default=0.2, gt=0, le=0.5)
    search_per_class: int | None = pydantic.Field(default=None, ge=1, le=2**31)
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    size: Size | Literal["own"] | None = None
    channels: Pixels | Literal["own"] | None = None
    crop_pct: float | None = pydantic.Field(default=None, ge=0.1, le=1)
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: tuple[float, ...] | None = pydantic.Field(default=None, min_length=1, max_length=2**14)
    std: tuple[Annotated[float, pydantic.Field(gt=0)], ...] | None = None
    image_column: str | None = None
    label_column: str | None = None
    exif: Literal["upright", "ignored"] | None = None
    pixel_range: tuple[float, float] | None = None
    class_order: Literal["plain", "natural"] | None = None
    skip: tuple[str, ...] | Literal["unreadable"] = ()
    clutter: ClutterConfig | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _complete(cls, value: Any) -> Any:
        """Accept a name alone; fill in the settings of clutter, so that a run's record keeps those that made it."""
        if isinstance(value, (str, os.PathLike)):
            value = {"name": os.fspath(value)}
        if isinstance(value, dict) and value.get("name") == "clutter" and value.get("clutter") is None:
            value = {**value, "clutter": {}}
        return value

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        return value if value in EMBEDDED else absolute(value)

    _square = pydantic.field_validator("size", mode="before")(square)

    @pydantic.field_validator("pixel_range")
    @classmethod
    def _two_values(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] == value[1]:
            raise ValueError("black and white are the same value")
        return value

    @pydantic.model_validator(mode="after")
    def _mean_and_std(self) -> DataConfig:
        if len(self.mean or ()) != len(self.std or ()):
            raise ValueError("give mean and std, both with a value for each channel")
        return self

    @pydantic.model_validator(mode="after")
    def _clutter_alone(self) -> DataConfig:
        if self.clutter is not None and self.name != "clutter":
            raise ValueError(f"the data are {self.name or 'not named'}, not clutter: leave the settings of clutter out")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _without_later(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key not in LATER or value}

    def recorded(self, fingerprint: str) -> dict[str, Any]:
        """Return the settings and the fingerprint of the data as plain values, for the record of a phase."""
        # An older version ignored the orientation and had no word for it. Which images are skipped is told by the
        # fingerprint: the same images are left when those that were skipped are deleted.
        left_out = {"skip", *(["exif"] if self.exif == "ignored" else [])}
        return {**self.model_dump(mode="json", exclude=left_out), "fingerprint": fingerprint}


def stored_config(preset: Mapping[str, Any]) -> DataConfig:
    """Return the data settings of a run directory's preset.

    Older versions did not turn images upright and wrote no `exif`: their images are read as before.
    """
    config = DataConfig.model_validate(preset["data"])
    if config.exif is None and config.name not in EMBEDDED:
        return config.model_copy(update={"exif": "ignored"})
    return config


class CalibrationConfig(Config):
    """Training images for the calibration of a subnet's batch norms, before it is scored or extracted.

    They are augmented as in training, drawn once, and the same for every subnet.

    Attributes:
        images: number of images; if there are fewer, they are drawn again with other augmentation.
        batch_size: images of one batch; a subnet's statistics are the mean over batches.
        seed: seed of the draw.
    """

    images: int = pydantic.Field(default=2048, ge=2, le=10**6)
    batch_size: int = pydantic.Field(default=64, ge=2, le=10**5)
    seed: Seed = 0

    @pydantic.model_validator(mode="after")
    def _whole_batches(self) -> CalibrationConfig:
        if self.images % self.batch_size:
            raise ValueError(f"{self.images} images are no whole batches of {self.batch_size}")
        return self


def crop_pct_for(config: DataConfig, size: tuple[int, int]) -> float:
    """Return the configured `crop_pct`, or the default for an image size."""
    if config.crop_pct is not None:
        return config.crop_pct
    return 0.875 if min(size) >= PAPERS_CROP_FROM else 1.0
