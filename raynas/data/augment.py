"""Augmentation of single training images.

Mixup, CutMix and label smoothing combine images of a batch and belong to the training recipe.
"""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from raynas.config import Config, added_field

Share = Annotated[float, pydantic.Field(gt=0, le=1)]
Aspect = Annotated[float, pydantic.Field(ge=0.01, le=100)]


class AugmentConfig(Config):
    """Augmentation of single images under timm's names; the default changes nothing.

    Attributes:
        shift: shift the image by up to this many pixels in each direction; uncovered pixels become black.
        hflip, vflip: probability of mirroring.
        scale: least and largest share of the image's area in a random resized crop; no random crop without it.
        ratio: least and largest aspect ratio (width by height) of that crop.
        interpolation: resizing of the random crop: `bilinear`, `bicubic` or `random` (either).
        color_jitter: strength of brightness, contrast and saturation changes (of grey images brightness and contrast);
            as in timm, beside `auto_augment` only with `force_color_jitter`, or if that is a policy with `3a`.
        force_color_jitter: True for `color_jitter` beside `auto_augment`.
        auto_augment: a timm policy, e.g. `rand-m9-mstd0.5-inc1`.
        reprob: probability of random erasing.
        remode: filling of erased regions: `const` (the mean colour), `rand` (one random colour) or `pixel` (noise).
        recount: largest number of erased regions.
        repeats: copies of an image in one epoch, each augmented differently (DeiT's repeated augmentation: an epoch
            keeps its length and has fewer different images).
    """

    shift: int = pydantic.Field(default=0, ge=0, le=2**14)
    hflip: float = pydantic.Field(default=0.0, ge=0, le=1)
    vflip: float = pydantic.Field(default=0.0, ge=0, le=1)
    scale: tuple[Share, Share] | None = None
    ratio: tuple[Aspect, Aspect] = (3 / 4, 4 / 3)
    interpolation: Literal["bilinear", "bicubic", "random"] = "bicubic"
    color_jitter: float | None = pydantic.Field(default=None, ge=0, le=10)
    force_color_jitter: bool = added_field(False)
    auto_augment: str | None = None
    reprob: float = pydantic.Field(default=0.0, ge=0, le=1)
    remode: Literal["const", "rand", "pixel"] = "const"
    recount: int = pydantic.Field(default=1, ge=1, le=100)
    repeats: int = pydantic.Field(default=1, ge=1, le=100)

    @pydantic.field_validator("scale", "ratio")
    @classmethod
    def _ascending(cls, span: tuple[float, float] | None) -> tuple[float, float] | None:
        if span is not None and span[0] > span[1]:
            raise ValueError(f"the least comes first: [{span[1]:g}, {span[0]:g}]")
        return span

    @pydantic.model_validator(mode="after")
    def _one_way_to_move(self) -> AugmentConfig:
        if self.scale is not None and self.shift:
            raise ValueError("shift and scale both move the image: give one of them")
        return self

    @property
    def random(self) -> bool:
        """True if an image may change from epoch to epoch."""
        mirrored = any(0 < chance < 1 for chance in (self.hflip, self.vflip))
        return bool(self.shift or mirrored or self.reprob or self.needs_images)

    @property
    def jitters(self) -> bool:
        """True if `color_jitter` acts: timm leaves it out beside a policy, unless it is asked for."""
        beside = self.auto_augment is None or self.force_color_jitter or "3a" in self.auto_augment
        return bool(self.color_jitter) and beside

    @property
    def needs_images(self) -> bool:
        """True if augmentation needs timm's transforms of single images, and does not work on a tensor of many."""
        return bool(self.scale is not None or self.color_jitter or self.auto_augment)
