"""Which images are used, and how they are split and sized."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic

from raynas.config import Config, Seed
from raynas.locations import is_uri, refuse_credentials

EMBEDDED = ("digits", "mnist5k")
PAPERS_CROP_FROM = 96  # pixels of the shorter side

LATER = ("exif", "pixel_range", "class_order", "skip")  # written where they are set: older runs compare as before

Pixels = Annotated[int, pydantic.Field(ge=1, le=2**14)]
Size = tuple[Pixels, Pixels]


def square(size: Any) -> Any:
    """One number stands for height and width."""
    return (size, size) if isinstance(size, int) and not isinstance(size, bool) else size


class DataConfig(Config):
    """A dataset by name, its splits and its image size. A bare string stands for `{name: string}`.

    Attributes:
        name: `digits`, `mnist5k`, a folder of class folders, a Parquet file or folder, either of them by path or by
            pyarrow filesystem URI (`s3://...`, `gs://...`, `file://...`), or `module:function` returning a map-style
            torch dataset or a pair (train, test) of them. An existing relative path is made absolute, since workers
            start elsewhere; on a cluster every node must see the path.
        search_fraction: part of the training images kept for scoring subnets.
        seed: of the cut between training and search images. The test images are cut with a fixed seed of our own, so
            that no setting can move a test image into training.
        size: (height, width) that the network sees, or one number for both; `own` for the size that all images have.
            Without it the dataset's own size (embedded and tensor datasets), else the space's, else 224. Embedded
            images are resized to it like any others, by timm's evaluation transform: antialiased, with
            `interpolation`.
        channels: 1 (grey) or 3 (RGB); `own` for those that the images have. Without it the dataset's own (embedded and
            tensor datasets), else the space's, else 3. Images are converted; transparency is left out.
        crop_pct: part of the resized image that the centre crop keeps when nothing is random (timm's `crop_pct`);
            without it 0.875 from 96 pixels up, and 1.0 below.
        interpolation: of that resizing: `bilinear` or `bicubic`.
        image_column, label_column: of Parquet files; found by type and name when left out.
        exif: images are turned `upright` as their EXIF orientation says (the default), or it is `ignored`, as other
            tools do and older versions did.
        pixel_range: the values of black and white in images of more than 8 bits a channel, such as [0, 4095]. What
            lies outside becomes black or white. Such images are refused without it: no file says what their range is.
        class_order: of class names that are text: `plain`, character by character (1, 10, 2), as torchvision's; or
            `natural` (1, 2, 10), as timm's and people's. Plain if left out.
        skip: images to leave out, by their names in the dataset; `unreadable`: those that cannot be read, which are
            looked for before training and then kept by name.
    """

    name: str = pydantic.Field(min_length=1)
    search_fraction: float = pydantic.Field(default=0.2, gt=0, le=0.5)
    seed: int = pydantic.Field(default=0, ge=0, lt=2**32)
    size: Size | Literal["own"] | None = None
    channels: Pixels | Literal["own"] | None = None
    crop_pct: float | None = pydantic.Field(default=None, ge=0.1, le=1)
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    image_column: str | None = None
    label_column: str | None = None
    exif: Literal["upright", "ignored"] | None = None
    pixel_range: tuple[float, float] | None = None
    class_order: Literal["plain", "natural"] | None = None
    skip: tuple[str, ...] | Literal["unreadable"] = ()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _accept_string(cls, value: Any) -> Any:
        return {"name": os.fspath(value)} if isinstance(value, (str, os.PathLike)) else value

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _absolute(cls, value: Any) -> Any:
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            refuse_credentials(value)
        if isinstance(value, str) and value not in EMBEDDED and not is_uri(value) and os.path.exists(value):
            return os.path.abspath(value)
        return value

    _square = pydantic.field_validator("size", mode="before")(square)

    @pydantic.field_validator("pixel_range")
    @classmethod
    def _two_values(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] == value[1]:
            raise ValueError("black and white are the same value")
        return value

    @pydantic.model_serializer(mode="wrap")
    def _without_later(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if key not in LATER or value}

    def recorded(self, fingerprint: str) -> dict[str, Any]:
        """Plain values as a piece of work records that it began with, with the fingerprint of the data."""
        # An older version ignored the orientation and had no word for it. Which images are skipped is told by the
        # fingerprint: the same images are left when those that were skipped are deleted.
        left_out = {"skip", *(["exif"] if self.exif == "ignored" else [])}
        return {**self.model_dump(mode="json", exclude=left_out), "fingerprint": fingerprint}


def stored_config(preset: Mapping[str, Any]) -> DataConfig:
    """The data of a preset that a run directory holds.

    Runs of versions that did not turn images upright say nothing of `exif`: their images are read as they were.
    """
    config = DataConfig.model_validate(preset["data"])
    if config.exif is None and config.name not in EMBEDDED:
        return config.model_copy(update={"exif": "ignored"})
    return config


class CalibrationConfig(Config):
    """The training images that a subnet's batch norms are calibrated on before it is scored or extracted.

    They are augmented as in training, drawn once, and the same for every subnet.

    Attributes:
        images: how many; drawn again, augmented otherwise, where there are not as many.
        batch_size: images of one batch; a subnet's statistics are the mean over batches.
        seed: of the draw.
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
    """The crop that `config` asks for, or the default at that size."""
    if config.crop_pct is not None:
        return config.crop_pct
    return 0.875 if min(size) >= PAPERS_CROP_FROM else 1.0
