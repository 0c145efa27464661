"""What happens to one training image before the network sees it.

Mixup, CutMix and label smoothing combine images of a batch and belong to the training recipe.
"""

from __future__ import annotations

import pydantic

from raynas.config import Config


class AugmentConfig(Config):
    """Augmentation of single images, named as timm names it. The default changes nothing.

    Attributes:
        shift: move the image by up to this many pixels in each direction; what is left empty is black.
        hflip, vflip: probability of mirroring.
        scale, ratio: area and aspect ratio of the random resized crop; no random crop without `scale`.
        interpolation: of the random crop: `bilinear`, `bicubic` or `random` (either).
        color_jitter: strength of brightness, contrast and saturation changes (not under `auto_augment`, as in timm).
        auto_augment: a timm policy, e.g. `rand-m9-mstd0.5-inc1`.
        reprob, remode, recount: random erasing: probability, filling (`const`, `rand`, `pixel`), most regions.
        repeats: copies of an image in one epoch, augmented differently (repeated augmentation, as DeiT's: an epoch is
            as long as without it and sees fewer images).
    """

    shift: int = pydantic.Field(default=0, ge=0)
    hflip: float = pydantic.Field(default=0.0, ge=0, le=1)
    vflip: float = pydantic.Field(default=0.0, ge=0, le=1)
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    interpolation: str = pydantic.Field(default="bicubic", pattern="^(bilinear|bicubic|random)$")
    color_jitter: float | None = pydantic.Field(default=None, ge=0)
    auto_augment: str | None = None
    reprob: float = pydantic.Field(default=0.0, ge=0, le=1)
    remode: str = pydantic.Field(default="const", pattern="^(const|rand|pixel)$")
    recount: int = pydantic.Field(default=1, ge=1)
    repeats: int = pydantic.Field(default=1, ge=1)

    @pydantic.model_validator(mode="after")
    def _one_way_to_move(self) -> AugmentConfig:
        if self.scale is not None and self.shift:
            raise ValueError("shift and scale both move the image: give one of them")
        return self

    @property
    def random(self) -> bool:
        """Whether an image may look otherwise in another epoch."""
        mirrored = any(0 < chance < 1 for chance in (self.hflip, self.vflip))
        return bool(self.shift or mirrored or self.reprob or self.needs_images)

    @property
    def needs_images(self) -> bool:
        """Whether this works on decoded images one by one (timm's transforms) and not on a tensor of many."""
        return bool(self.scale is not None or self.color_jitter or self.auto_augment)
