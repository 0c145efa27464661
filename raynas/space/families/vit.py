"""The vocabulary of isotropic vision transformers: AutoFormer, and DeiT-shaped spaces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raynas.config import Config, Location
from raynas.space.families.rules import Family, Rule

if TYPE_CHECKING:
    from raynas.space.arch import Arch
    from raynas.space.space import Space


MAX_TOKENS = 2**16


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

    head_dim: int = Field(64, ge=1, le=1024)
    attention_scale: float | None = Field(None, gt=0)
    class_token: bool = True
    pool: Literal["token", "mean"] = "token"
    relative_position: int | None = Field(None, ge=1, le=1024)
    qkv_bias: Literal["none", "head", "thirds"] = "head"
    norm_eps: float = Field(1e-6, gt=0)
    drop_path_depth: int | None = Field(None, ge=1, le=256)
    sharing: Literal["ordinal"] = "ordinal"


def _resolve(constants: VitConstants, choices: dict[str, tuple]) -> VitConstants:
    return constants.model_copy(
        update={
            "attention_scale": constants.attention_scale or constants.head_dim**-0.5,
            "drop_path_depth": constants.drop_path_depth or max(choices["depth"]),
        }
    )


def _check(space: Space) -> Iterator[tuple[Location, str]]:
    if space.constants.pool == "token" and not space.constants.class_token:
        yield ("constants", "pool"), "'token' needs class_token: true"
    patches = space["patch_size"].choices
    largest, finest = max(patches), min(patches)
    height, width = space.input_size
    if largest > max(height, width):
        yield ("dimensions", "patch_size"), f"{largest} is larger than the {height} x {width} image"
    if -(-height // finest) * -(-width // finest) > MAX_TOKENS:
        yield ("dimensions", "patch_size"), f"{finest} makes more than {MAX_TOKENS} tokens"
    if min(space["width"].choices) * min(space["blocks.0.mlp_ratio"].choices) < 1:
        yield ("dimensions", "blocks"), "the smallest width times the smallest mlp_ratio leaves no hidden channel"


def _scale(arch: Arch, factor: float) -> Arch:
    """Embedding and head width grow by `factor`, each to the nearest channel; all else stays."""
    space = arch.space
    head_dim = max(1, round(space.constants.head_dim * factor))
    # A scale that is not the usual one keeps its ratio to it.
    attention_scale = space.constants.attention_scale * (space.constants.head_dim / head_dim) ** 0.5
    constants = space.constants.model_copy(update={"head_dim": head_dim, "attention_scale": attention_scale})
    width = max(1, round(arch["width"] * factor))
    return space.replace(constants=constants).off_grid({**arch, "width": width})


VIT = Family(
    constants=VitConstants,
    dimensions={
        "patch_size": Rule(int, 1, 1024, descending=True),
        "width": Rule(int, 1, 2**15),
        "depth": Rule(int, 1, 256),
        "blocks.*.heads": Rule(int, 1, 1024),
        "blocks.*.mlp_ratio": Rule(float, 0, 64),
    },
    resolve=_resolve,
    check=_check,
    scale=_scale,
)
