"""Import of weights from AutoFormer's released supernets, and timm's DeiT and ViT.

AutoFormer's released layout differs from ours in three ways. Its query-key-value matrix assigns the first 3 Q rows
alternately to query, key and value (Q = heads x head_dim), so a head's rows are 3 apart: they are permuted to [heads,
3, head_dim], in which fewer heads are still a prefix. Its bias is cut into contiguous thirds instead: the raw vector is
kept (`qkv_bias: thirds`). And the allocated width may exceed the widest choice (256 against 240 for T): the prefix is
taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, Mlp, PatchEmbed
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.vit.model import VitSupernet
from raynas.nets.released import Checkpoint, read_parameters
from raynas.nets.timm_weights import with_classifier
from raynas.space import Space, load_space
from raynas.space.rules import ratio_of

INITIAL_SCALE = 1e-5
"""Initial layer scale of spaces made of networks whose factors are trained already (timm's and DeiT III's)."""

RELEASED = ("autoformer/tiny", "autoformer/small", "autoformer/base")
"""The spaces whose checkpoints were released."""

# Released names by our names, and the axes of which a space may take a prefix; other axes must have equal length.
_NETWORK = {
    "stem.{patch}.class_token": ("cls_token", (2,)),
    "stem.{patch}.position": ("pos_embed", (2,)),
    "stem.{patch}.proj.weight": ("patch_embed_super.proj.weight", (0,)),
    "stem.{patch}.proj.bias": ("patch_embed_super.proj.bias", (0,)),
    "norm.weight": ("norm.weight", (0,)),
    "norm.bias": ("norm.bias", (0,)),
    "head.weight": ("head.weight", (1,)),
    "head.bias": ("head.bias", ()),
}
_BLOCK = {
    "norm1.weight": ("attn_layer_norm.weight", (0,)),
    "norm1.bias": ("attn_layer_norm.bias", (0,)),
    "qkv.weight": ("attn.qkv.weight", (0, 1)),
    "qkv.bias": ("attn.qkv.bias", (0,)),
    "relative.key_rows": ("attn.rel_pos_embed_k.embeddings_table_v", ()),
    "relative.key_columns": ("attn.rel_pos_embed_k.embeddings_table_h", ()),
    "relative.value_rows": ("attn.rel_pos_embed_v.embeddings_table_v", ()),
    "relative.value_columns": ("attn.rel_pos_embed_v.embeddings_table_h", ()),
    "proj.weight": ("attn.proj.weight", (0, 1)),
    "proj.bias": ("attn.proj.bias", (0,)),
    "norm2.weight": ("ffn_layer_norm.weight", (0,)),
    "norm2.bias": ("ffn_layer_norm.bias", (0,)),
    "fc1.weight": ("fc1.weight", (0, 1)),
    "fc1.bias": ("fc1.bias", (0,)),
    "fc2.weight": ("fc2.weight", (0, 1)),
    "fc2.bias": ("fc2.bias", (0,)),
}


def read_released(checkpoint: Checkpoint, space: Space | None = None) -> tuple[Space, dict[str, Tensor]]:
    """Read a supernet checkpoint in the layout of AutoFormer's release.

    Every subnet of the space then computes the same as in the released code.

    Args:
        checkpoint: a file, or its content: the parameters, or a mapping that holds them as `model`.
        space: the space to read it for. By default the released space (tiny, small or base) of the checkpoint's size,
            with the image size, channels and classes of the checkpoint.

    Returns:
        The space, and the parameters of its supernet by our names, in float32.

    Raises:
        UserError: the layout is another, or the checkpoint does not fit the space; the message names the fault.
    """
    state = read_parameters(checkpoint, ["model"], "an AutoFormer checkpoint")
    space = space or _recognise(state)
    if space.family != "vit" or len(space["patch_size"].choices) != 1:
        raise UserError(f"space {space.name}: an AutoFormer checkpoint needs a vit space with one patch size")
    if space.constants.qkv_bias == "head":
        raise UserError(
            f"space {space.name}: the released layout has no bias for each head; "
            "say `qkv_bias: thirds` (which entry serves what depends on the heads), or `none`"
        )
    with torch.device("meta"):
        ours = VitSupernet(space).state_dict()
    sources = {name: _source(name) for name in ours}
    wanted = {released for released, _ in sources.values()}
    depth = max(space["depth"].choices)
    for key in state:
        block = re.match(r"blocks\.(\d+)\.", key)
        if key not in wanted and not (block and int(block[1]) >= depth):
            raise UserError(f"the checkpoint has {key!r}, for which space {space.name} has no use")
    read = {}
    for name, tensor in ours.items():
        released, prefix = sources[name]
        if released not in state:
            raise UserError(f"the checkpoint lacks {released!r}, which space {space.name} needs")
        _check_shape(released, tuple(state[released].shape), tuple(tensor.shape), prefix, space)
        value = state[released][tuple(slice(0, size) for size in tensor.shape)].float()
        if released.endswith("qkv.weight"):
            value = _undeal(value, space.constants.head_dim)
        read[name] = value.clone(memory_format=torch.contiguous_format)
    return space, read


def _source(name: str) -> tuple[str, tuple[int, ...]]:
    """Return the released name of one of our parameters, and the axes of which we may take a prefix."""
    block = re.match(r"(blocks\.\d+\.)(.*)", name)
    if block:
        released, prefix = _BLOCK.get(block[2], (block[2], ()))
        return block[1] + released, prefix
    return _NETWORK.get(re.sub(r"^stem\.\d+\.", "stem.{patch}.", name), (name, ()))


def _check_shape(
    name: str, found: tuple[int, ...], needed: tuple[int, ...], prefix: tuple[int, ...], space: Space
) -> None:
    fits = len(found) == len(needed) and all(
        have >= need if axis in prefix else have == need
        for axis, (have, need) in enumerate(zip(found, needed, strict=False))
    )
    if not fits:
        at_least = ", ".join(f"{size} or more" if axis in prefix else str(size) for axis, size in enumerate(needed))
        raise UserError(f"the checkpoint's {name} is {list(found)}; space {space.name} needs [{at_least}]")


def _undeal(weight: Tensor, head_dim: int) -> Tensor:
    """Permute alternating rows, [heads, head_dim, 3], to our [heads, 3, head_dim]."""
    return weight.unflatten(0, (-1, head_dim, 3)).transpose(1, 2).reshape(weight.shape)


def _recognise(state: Mapping[str, Tensor]) -> Space:
    """Return the released space with a checkpoint's depth, heads and hidden channels, for its images and classes."""
    try:
        projection, position = state["patch_embed_super.proj.weight"], state["pos_embed"]
        depth = sum(key.endswith("attn.qkv.weight") for key in state)
        heads = state["blocks.0.attn.qkv.weight"].shape[0] / 3
        hidden = state["blocks.0.fc1.weight"].shape[0] / state["blocks.0.fc1.weight"].shape[1]
        classes = state["head.weight"].shape[0]
        channels, patch = projection.shape[1], projection.shape[2]
        side = round((position.shape[1] - 1) ** 0.5)
    except (KeyError, IndexError) as error:
        raise UserError(f"not an AutoFormer supernet checkpoint: it lacks {error}") from error
    for name in RELEASED:
        space = load_space(name)
        held = (
            max(space["depth"].choices),
            max(space["blocks.0.heads"].choices) * space.constants.head_dim,
            max(space["blocks.0.mlp_ratio"].choices),
            space["patch_size"].choices[0],
        )
        if held == (depth, heads, hidden, patch):
            return space.with_input(side * patch, channels, classes)
    raise UserError(
        f"the checkpoint has {depth} blocks of query width {heads:g} and MLP ratio {hidden:g}, patch size {patch}: "
        f"none of {', '.join(RELEASED)}; say which space it is of"
    )


_POOLS = {"token": "token", "avg": "mean"}
"""Our names of pooling by timm's."""

_TIMM = {
    "stem.{patch}.class_token": "cls_token",
    "stem.{patch}.position": "pos_embed",
    "stem.{patch}.proj.weight": "patch_embed.proj.weight",
    "stem.{patch}.proj.bias": "patch_embed.proj.bias",
}
_TIMM |= {f"distillation_head.{leaf}": f"head_dist.{leaf}" for leaf in ("weight", "bias")}
_TIMM_BLOCK = {"qkv": "attn.qkv", "proj": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
"""timm's names by our names; others are equal."""


def read_timm(model: nn.Module, name: str) -> tuple[Space, dict[str, Tensor]]:
    """Read one of timm's DeiTs or ViTs as the one-point space of its network; see `raynas.space.families`."""
    part = next(_foreign_parts(model), None)
    if part is not None:
        raise UserError(f"{name} has {part}, which no vit space can express")
    known: Any = model
    state = {key: value.detach().float() for key, value in known.state_dict().items()}
    distils = "dist_token" in state
    if distils:  # our class tokens are one parameter
        state["cls_token"] = torch.cat([state["cls_token"], state.pop("dist_token")], dim=1)
    if known.no_embed_class and "cls_token" in state:  # a token without a position has one of zeros
        state["pos_embed"] = F.pad(state["pos_embed"], (0, 0, state["cls_token"].shape[1], 0))
    for head in ("head", "head_dist") if distils else ("head",):
        with_classifier(state, head, known.embed_dim)
    attention, width = known.blocks[0].attn, known.embed_dim
    definition = {
        "family": "vit",
        "input": {"size": list(known.patch_embed.img_size), "channels": known.in_chans},
        "classes": len(state["head.weight"]),
        "constants": {
            "head_dim": attention.head_dim,
            "class_token": known.cls_token is not None,
            "pool": _POOLS[known.global_pool],
            "qkv_bias": "none" if attention.qkv.bias is None else "head",
            "norm_eps": known.norm.eps,
            "distillation_token": distils,
            "layer_scale": INITIAL_SCALE if "blocks.0.ls1.gamma" in state else None,
        },
        "dimensions": {
            "patch_size": [known.patch_embed.patch_size[0]],
            "width": [width],
            "depth": [len(known.blocks)],
            "blocks": {
                "heads": [attention.num_heads],
                "mlp_ratio": [ratio_of(width, known.blocks[0].mlp.fc1.out_features)],
            },
        },
    }
    space = Space.from_dict(definition, name)
    with torch.device("meta"):
        ours = VitSupernet(space).state_dict()
    read = {}
    for key in ours:
        block = re.match(r"(blocks\.\d+\.)(\w+)\.(.*)", key)
        if block:
            source = f"{block[1]}{_TIMM_BLOCK.get(block[2], block[2])}.{block[3]}"
        else:
            generic = re.sub(r"^stem\.\d+\.", "stem.{patch}.", key)
            source = _TIMM.get(generic) or generic
        if source not in state or state[source].shape != ours[key].shape:
            raise UserError(f"{name} has no {source} of shape {list(ours[key].shape)}: no vit space can express it")
        value = state.pop(source)
        if ".qkv." in key:  # [3, heads, head_dim] to [heads, 3, head_dim]
            value = value.unflatten(0, (3, attention.num_heads, -1)).transpose(0, 1).flatten(0, 2)
        read[key] = value.clone(memory_format=torch.contiguous_format)
    if state:
        raise UserError(f"{name} has {next(iter(state))!r}, which no vit space can express")
    return space, read


def _foreign_parts(model: nn.Module) -> Iterator[str]:
    """Yield parts of a timm model that no vit space has, as far as the names and shapes of parameters do not tell."""
    if not isinstance(model, VisionTransformer):
        yield f"the architecture {type(model).__name__}"
        return
    known: Any = model
    if known.reg_token is not None:
        yield "register tokens (reg_token)"
    if known.pos_embed is None:
        yield "no position embeddings (pos_embed)"
    if known.attn_pool is not None or known.global_pool not in _POOLS or known.pool_include_prefix:
        yield f"the pooling {known.global_pool!r}"
    for path, place in (("norm_pre", "before the blocks"), ("fc_norm", "behind the pooling")):
        if not isinstance(known.get_submodule(path), nn.Identity):
            yield f"a norm {place} ({path})"
    if type(known.patch_embed) is not PatchEmbed or len(set(known.patch_embed.patch_size)) > 1:
        yield f"a {type(known.patch_embed).__name__} of patches {known.patch_embed.patch_size} (patch_embed)"
    for index, block in enumerate(known.blocks):
        wanted = {block: Block, getattr(block, "attn", None): Attention, getattr(block, "mlp", None): Mlp}
        if other := [type(part).__name__ for part, kind in wanted.items() if type(part) is not kind]:
            yield f"a {other[0]} in blocks.{index}"
            return
        if not isinstance(block.mlp.act, nn.GELU) or block.mlp.act.approximate != "none":
            yield f"the activation {block.mlp.act} in blocks.{index}"
        for norm in (known.norm, block.norm1, block.norm2):
            if not isinstance(norm, nn.LayerNorm) or norm.eps != known.norm.eps:
                yield f"{norm} in blocks.{index}, where the last norm is {known.norm}"
