"""Which images are used, and how they are split and sized."""

from __future__ import annotations

import os
from typing import Annotated, Any

import pydantic

from raynas.config import Config
from raynas.locations import is_uri, refuse_credentials

EMBEDDED = ("digits", "mnist5k")
PAPERS_CROP_FROM = 96  # pixels of the shorter side

Size = tuple[Annotated[int, pydantic.Field(ge=1)], Annotated[int, pydantic.Field(ge=1)]]


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
        size: (height, width) that the network sees, or one number for both; without it the dataset's own size
            (embedded and tensor datasets), else 224. Embedded images are resized to it like any others,
            by timm's evaluation transform: antialiased, with `interpolation`.
        channels: 1 (grey) or 3 (RGB); without it the dataset's own, else 3. Images are converted.
        crop_pct: part of the resized image that the centre crop keeps when nothing is random (timm's `crop_pct`);
            without it 0.875 from 96 pixels up, and 1.0 below.
        interpolation: of that resizing.
        image_column, label_column: of Parquet files; found by type and name when left out.
    """

    name: str = pydantic.Field(min_length=1)
    search_fraction: float = pydantic.Field(default=0.2, gt=0, le=0.5)
    seed: int = pydantic.Field(default=0, ge=0)
    size: Size | None = None
    channels: int | None = pydantic.Field(default=None, ge=1)
    crop_pct: float | None = pydantic.Field(default=None, gt=0, le=1)
    interpolation: str = pydantic.Field(default="bicubic", pattern="^(bilinear|bicubic)$")
    image_column: str | None = None
    label_column: str | None = None

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


class CalibrationConfig(Config):
    """The training images that a subnet's batch norms are calibrated on before it is scored or extracted.

    They are augmented as in training, drawn once, and the same for every subnet.

    Attributes:
        images: how many; drawn again, augmented otherwise, where there are not as many.
        batch_size: images of one batch; a subnet's statistics are the mean over batches.
        seed: of the draw.
    """

    images: int = pydantic.Field(default=2048, ge=2)
    batch_size: int = pydantic.Field(default=64, ge=2)
    seed: int = pydantic.Field(default=0, ge=0)

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
