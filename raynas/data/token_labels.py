"""Labels for patch tokens (ViT-ResNAS, "token labeling"); `raynas.data.token_mixing` makes them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raynas.config import Config


class TokenLabelsConfig(Config):
    """Every patch of an image gets a label of its own, which the space's token head learns.

    Attributes:
        mixing: `released`: in every batch the first half gets CutMix by patches and the rest Mixup, with the released
            code's boxes (which never reach the last row). `switch`: a whole batch gets either, as the paper describes,
            with a random set of patches in place of a box. `none`: patches have the image's label; so they do under the
            recipe's own `mixup`.
        cutmix, mixup: alphas of the Beta distributions of how much is pasted, or how strongly images are blended.
        switch_prob: of CutMix, for `switch`.
    """

    mixing: Literal["released", "switch", "none"] = "released"
    cutmix: float = Field(default=1.0, gt=0, le=1000)
    mixup: float = Field(default=0.8, gt=0, le=1000)
    switch_prob: float = Field(default=0.5, ge=0, le=1)
