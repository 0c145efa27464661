"""The vocabulary of isotropic vision transformers: AutoFormer, DeiT, ViTAS's DeiT-shaped spaces."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field

from raynas.config import Config, added_field
from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.dimension import Dimension
from raynas.space.rules import (
    MAX_TOKENS,
    CommonConstants,
    Family,
    Rule,
    check_blocks,
    hidden_width,
    with_attention_scale,
)


class ClassAttention(Config):
    """CaiT's class attention: last blocks in which the class token alone attends, to itself and to the patches.

    The class token (and a distillation token) joins the patches there, so that the blocks before have patches alone.

    Attributes:
        blocks: number of blocks.
        heads: number of attention heads.
        head_dim: channels of one head; the query width is `head_dim * heads`, whatever the embedding width.
        mlp_ratio: hidden channels of the MLP over the embedding width.
    """

    blocks: int = Field(2, ge=1, le=16)
    heads: int = Field(ge=1, le=1024)
    head_dim: int = Field(ge=1, le=1024)
    mlp_ratio: float = Field(4.0, gt=0, le=64)


class VitConstants(CommonConstants):
    """Constants of a vit space.

    Attributes:
        head_dim: channels of one attention head; query width is `head_dim * heads`, whatever the embedding width. None
            if the query width is searched (dimension `query_width`) and divided among the chosen heads.
        attention_scale: factor on the raw scores; by default one over the square root of a head's channels.
        class_token: True to prepend a class token to the patch tokens.
        private_class_token: True for a separate class token for each patch size, like its stem and positions.
        pool: input of the classifier after the final norm: the class token, or the mean of the patch tokens.
        relative_position: the largest distance R of AutoFormer's relative position on keys and values; None for none.
        qkv_bias: `none`; `head` (each head has its own entries); `thirds` (the first 3 Q entries cut in three
            contiguous thirds, so that an entry is for queries in one subnet and keys in another: AutoFormer's released
            layout).
        private_heads: query, key and value projections with separate parameters for each head count; ViTAS v1 has
            `qk`.
        norm_eps: epsilon of every LayerNorm.
        layer_scale: initial value of CaiT's layer scale, a learnt factor on each channel of both branches of a block;
            None for none.
        class_attention: CaiT's class-attention blocks behind the others; None for none.
        drop_path_depth: number of blocks over which the drop-path rate rises linearly from 0; by default the most
            blocks. A shallower subnet never reaches the full rate.
        depth_macs: for one stacked block without a dimension `depth`: the depth is as many blocks as fit into these
            multiply-accumulates, at least one.
        max_depth: the largest depth under `depth_macs`.
    """

    head_dim: int | None = Field(64, ge=1, le=1024)
    attention_scale: float | None = Field(None, gt=0)
    class_token: bool = True
    private_class_token: bool = True
    pool: Literal["token", "mean"] = "token"
    relative_position: int | None = Field(None, ge=1, le=1024)
    qkv_bias: Literal["none", "head", "thirds"] = "head"
    private_heads: Literal["none", "qk", "v", "qkv"] = "none"
    norm_eps: float = Field(1e-6, gt=0)
    layer_scale: float | None = added_field(None, gt=0, le=10)
    class_attention: ClassAttention | None = added_field(None)
    drop_path_depth: int | None = Field(None, ge=1, le=256)
    depth_macs: float | None = Field(None, gt=0)
    max_depth: int | None = Field(None, ge=1, le=256)

    @property
    def class_tokens(self) -> int:
        """Number of tokens that are no patches: a class token, and a distillation token behind it if there is one."""
        return int(self.class_token) + int(self.distillation_token)

    @property
    def tokens_in_front(self) -> int:
        """Number of these that stand before the patches in all blocks; none if they join them for class attention."""
        return self.class_tokens if self.class_attention is None else 0


# -- shapes: the same for numbers and for arrays [n], so that networks and costs cannot differ -------------------------


def patch_grid(size: tuple[int, int], patch_size: Any) -> tuple[Any, Any]:
    """Return rows and columns of patches on an image of (height, width) pixels; partial patches are padded."""
    return -(-size[0] // patch_size), -(-size[1] // patch_size)


def relative_groups(rows: Any, columns: Any, class_tokens: int, head_dim: int) -> Any:
    """Return the number of key groups of relative position: grid rows, grid columns and each class token.

    Queries, keys and values are that many channels wider inside the attention product. Empty groups pad the head to a
    multiple of 16 channels, which makes the product faster.
    """
    groups = rows + columns + class_tokens
    return groups + -(head_dim + groups) % 16


def relative_entries(distance: int) -> int:
    """Return the number of entries multiplied with a query: two tables of 2 R + 2, and the sum of first entries."""
    return 2 * (2 * distance + 2) + 1


def gene(space: CodedSpace, index: int, leaf: str) -> str:
    """Return the dimension of a block's `leaf`: the block's own, or the common one if one block is stacked."""
    stacked = f"block.{leaf}"
    return stacked if space.has(stacked) else f"blocks.{index}.{leaf}"


def block_genes(space: CodedSpace, index: int) -> tuple[str, str, str]:
    """Return the dimensions of a block's heads, query width (the heads again if they determine it), and MLP."""
    heads = gene(space, index, "heads")
    query = gene(space, index, "query_width")
    ratio = gene(space, index, "mlp_ratio")
    return heads, query if space.has(query) else heads, ratio if space.has(ratio) else gene(space, index, "mlp_width")


def hidden_channels(width: Any, gene: str, value: Any) -> Any:
    """Return the hidden channels of an MLP, from its dimension's value: a ratio to the embedding width, or a width."""
    return hidden_width(width, value) if gene.endswith("mlp_ratio") else value


# -- the family --------------------------------------------------------------------------------------------------------


def _required(constants: VitConstants, given: set[str]) -> list[str]:
    stacked = any(template.startswith("block.") for template in given)
    block = "block" if stacked else "blocks.*"
    names = ["patch_size", "width", f"{block}.heads"]
    if stacked and constants.depth_macs is not None:
        pass
    elif "blocks.*.kept" in given:
        names.append("blocks.*.kept")
    else:
        names.append("depth")
    if constants.head_dim is None:
        names.append(f"{block}.query_width")
    names.append(f"{block}.mlp_width" if f"{block}.mlp_width" in given else f"{block}.mlp_ratio")
    return names


def _resolve(constants: VitConstants, dimensions: tuple[Dimension, ...]) -> VitConstants:
    depths = [max(dimension.choices) for dimension in dimensions if dimension.name == "depth"]
    kept = sum(dimension.template == "blocks.*.kept" for dimension in dimensions)
    most = max(depths or [kept or constants.max_depth or 1])
    ramp = constants.drop_path_depth or max(most, 1)
    return with_attention_scale(constants).model_copy(update={"drop_path_depth": ramp})


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    constants = space.constants
    if constants.pool == "token" and not constants.class_token:
        yield ("constants", "pool"), "'token' needs class_token: true"
    for name in ("distillation_token", "class_attention"):
        if getattr(constants, name) and constants.pool != "token":
            yield ("constants", name), "needs pool: token"
    narrowest = min(space["width"].choices)
    if constants.class_attention and hidden_width(narrowest, constants.class_attention.mlp_ratio) < 1:
        yield ("constants", "class_attention", "mlp_ratio"), "leaves the smallest width no hidden channel"
    patches = space["patch_size"].choices
    largest, finest = max(patches), min(patches)
    height, width = space.input_size
    if largest > max(height, width):
        yield ("dimensions", "patch_size"), f"{largest} is larger than the {height} x {width} image"
    if math.prod(patch_grid(space.input_size, finest)) > MAX_TOKENS:
        yield ("dimensions", "patch_size"), f"{finest} makes more than {MAX_TOKENS} tokens"
    if (constants.depth_macs is None) != (constants.max_depth is None):
        given, missing = ("depth_macs", "max_depth") if constants.max_depth is None else ("max_depth", "depth_macs")
        yield ("constants", given), f"needs the constant {missing} beside it"
    if constants.depth_macs is not None and not space.has("block.heads"):
        yield ("constants", "depth_macs"), "is for one stacked block (dimensions: block), with no dimension depth"
    if constants.depth_macs is not None and space.has("depth"):
        yield ("dimensions", "depth"), "the depth follows from depth_macs: leave the dimension out"
    if constants.qkv_bias == "thirds" and (constants.head_dim is None or constants.private_heads != "none"):
        yield ("constants", "qkv_bias"), "thirds is AutoFormer's layout: it needs head_dim and private_heads: none"
    if constants.relative_position is not None and constants.head_dim is None:
        yield ("constants", "relative_position"), "its tables have a head's channels: it needs head_dim"
    yield from check_blocks(space)


_BLOCK: Mapping[str, Rule] = {
    "heads": Rule(int, 1, 1024),
    "query_width": Rule(int, 1, 2**15),
    "mlp_ratio": Rule(float, 0, 64),
    "mlp_width": Rule(int, 1, 2**17),
}

FAMILY = Family(
    constants=VitConstants,
    dimensions={
        "patch_size": Rule(int, 1, 1024, descending=True),
        "width": Rule(int, 1, 2**15),
        "depth": Rule(int, 0, 256),
        "blocks.*.kept": Rule(bool, 0, 1),
        **{f"blocks.*.{name}": rule for name, rule in _BLOCK.items()},
        **{f"block.{name}": rule for name, rule in _BLOCK.items()},
    },
    resolve=_resolve,
    check=_check,
    required=_required,
)
