"""The vocabulary of isotropic vision transformers: AutoFormer, and DeiT-shaped spaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raynas.config import Config
from raynas.space.families.rules import Family, Rule

if TYPE_CHECKING:
    from raynas.space.arch import Arch
    from raynas.space.space import Space


class VitConstants(Config):
    """What is fixed in a vit space.

    Attributes:
        head_dim: channels of one attention head; query width is `head_dim * heads`, whatever the embedding width.
        attention_scale: factor on the raw scores; by default `head_dim ** -0.5`.
        class_token: whether a class token is prepended to the patch tokens.
        pool: what the classifier reads after the final norm: the class token, or the mean of the patch tokens.
        relative_position: the largest distance R of AutoFormer's relative position on keys and values; None for none.
        qkv_bias: `none`; `head` (each head owns its entries); `thirds` (the first 3 Q entries cut in three contiguous
            thirds, so that an entry serves query in one subnet and key in another: AutoFormer's released layout).
        norm_eps: epsilon of every LayerNorm.
        drop_path_depth: number of blocks over which the drop-path rate rises linearly from 0; by default the largest
            depth. A shallower subnet never reaches the full rate.
        sharing: how widths share channels; `ordinal` gives each width the first channels.
    """

    head_dim: int = Field(64, ge=1)
    attention_scale: float | None = Field(None, gt=0)
    class_token: bool = True
    pool: Literal["token", "mean"] = "token"
    relative_position: int | None = Field(None, ge=1)
    qkv_bias: Literal["none", "head", "thirds"] = "head"
    norm_eps: float = Field(1e-6, gt=0)
    drop_path_depth: int | None = Field(None, ge=1)
    sharing: Literal["ordinal"] = "ordinal"


def _resolve(constants: VitConstants, choices: dict[str, tuple]) -> VitConstants:
    return constants.model_copy(
        update={
            "attention_scale": constants.attention_scale or constants.head_dim**-0.5,
            "drop_path_depth": constants.drop_path_depth or max(choices["depth"]),
        }
    )


def _check(space: Space) -> None:
    if space.constants.pool == "token" and not space.constants.class_token:
        raise ValueError("constants.pool: 'token' needs class_token: true")
    smallest_patch = min(space["patch_size"].choices)
    if smallest_patch > min(space.input_size):
        raise ValueError(f"patch_size: {smallest_patch} is larger than the {space.input_size} image")


def _scale(arch: Arch, factor: float) -> Arch:
    """Embedding and head width grow by `factor`, each to the nearest channel; depth, heads, ratio and patch size stay."""
    space = arch.space
    head_dim = max(1, round(space.constants.head_dim * factor))
    width = max(1, round(arch["width"] * factor))
    constants = space.constants.model_copy(update={"head_dim": head_dim, "attention_scale": head_dim**-0.5})
    return space.replace(constants=constants).off_grid({**arch, "width": width})


VIT = Family(
    constants=VitConstants,
    dimensions={
        "patch_size": Rule(int, 1, descending=True),
        "width": Rule(int, 1),
        "depth": Rule(int, 1),
        "blocks.*.heads": Rule(int, 1),
        "blocks.*.mlp_ratio": Rule(float, 0),
    },
    resolve=_resolve,
    check=_check,
    scale=_scale,
)
