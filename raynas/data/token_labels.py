"""Settings of labels for patch tokens (ViT-ResNAS, "token labeling"); see `raynas.data.token_mixing`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raynas.config import Config


class TokenLabelsConfig(Config):
    """A label for every patch of an image, for training the space's token head.

    Attributes:
        mixing: `released`: in every batch the first half gets CutMix by patches and the rest Mixup, with the released
            code's boxes (which never reach the last row). `switch`: a whole batch gets either, as the paper describes,
            with a random set of patches in place of a box. `none`: patches have the image's label; so they do under the
            recipe's own `mixup`.
        cutmix, mixup: alphas of the Beta distributions of the pasted share and of the blending strength.
        switch_prob: probability of CutMix, for `switch`.
    """

    mixing: Literal["released", "switch", "none"] = "released"
    cutmix: float = Field(default=1.0, gt=0, le=1000)
    mixup: float = Field(default=0.8, gt=0, le=1000)
    switch_prob: float = Field(default=0.5, ge=0, le=1)
