"""Import of weights from S3's and Swin's released networks, and timm's Swin.

All three use the same parameter names, except that a merging is at the end of a stage in the releases and at the
beginning of the next in timm. Their rows are all queries, then all keys, then all values, and ours go head by head;
their tables of biases have heads as the last axis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.s3.block import windows_of
from raynas.families.s3.model import S3Supernet
from raynas.families.s3.space import grids, window_sides
from raynas.nets.released import Checkpoint, read_parameters
from raynas.nets.timm_weights import with_classifier
from raynas.space import Space
from raynas.space.rules import ratio_of

_NETWORK = {"embedding.conv": "patch_embed.proj", "embedding.norm": "patch_embed.norm"}
_MERGING = {"norm": "downsample.norm", "linear": "downsample.reduction"}
_BLOCK = {"qkv": "attn.qkv", "proj": "attn.proj", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
"""Their names by our names; others are equal."""

_BUFFERS = ("relative_position_index", "attn_mask")
"""Buffers that follow from windows and grids."""


def read_released(checkpoint: Checkpoint, space: Space | None = None) -> tuple[Space, dict[str, Tensor]]:
    """Read a single network's checkpoint in the layout of S3's and Swin's releases.

    Args:
        checkpoint: a file, or its content: the parameters, or a mapping that holds them as `model`.
        space: the one-point space to read it for. By default the space with these shapes, for images of 224 pixels
            (the image size does not follow from shapes).

    Returns:
        The space, and the parameters of its supernet by our names, in float32.

    Raises:
        UserError: the layout is another, or the checkpoint does not fit the space; the message names the fault.
    """
    state = read_parameters(checkpoint, ["model"], "an S3 checkpoint")
    if space is None:
        space = _space(state, (224, 224), 1e-5, "the checkpoint", lambda stage, place, table: _window_of(len(table)))
    elif space.family != "s3":
        raise UserError(f"space {space.name}: an S3 checkpoint needs a space of family s3")
    return space, _read(state, space, "the checkpoint", timm=False)


def read_timm(model: nn.Module, name: str) -> tuple[Space, dict[str, Tensor]]:
    """Read a Swin transformer or S3 of timm as the one-point space of its network; see `raynas.space.families`."""
    state = model.state_dict()
    known: Any = model
    if "norm.weight" in state:
        with_classifier(state, "head.fc", len(state["norm.weight"]))
    try:
        blocks = [list(layer.blocks) for layer in known.layers]
        sides = [[max(block.window_size) for block in stage] for stage in blocks]
        size, eps, pool = tuple(known.patch_embed.img_size), known.norm.eps, known.global_pool
    except (AttributeError, TypeError) as error:
        raise UserError(f"{name} is not a Swin transformer that an s3 space can express ({error})") from error
    if pool != "avg":
        raise UserError(f"{name} pools by {pool!r}: no s3 space can express it")
    space = _space(state, size, eps, name, lambda stage, place, table: sides[stage][place])
    arch = space.smallest()
    for stage, (grid, listed) in enumerate(zip(grids(space), blocks, strict=True)):
        for place, block in enumerate(listed):
            wanted = window_sides(space, arch[f"stages.{stage}.blocks.{place}.window"])
            windows = windows_of(grid, wanted, shifted=place % 2 == 1)
            theirs = (tuple(block.input_resolution), tuple(block.window_size), tuple(block.shift_size))
            if theirs != (windows.grid, windows.window, windows.shift) or any(windows.padding):
                what = f"windows of {theirs[1]}, shifted by {theirs[2]}, on a grid of {theirs[0]}"
                raise UserError(f"{name} has {what} in stage {stage}: no s3 space can express it")
    return space, _read(state, space, name, timm=True)


def _window_of(entries: int) -> int:
    """Return the side of the square window whose table has that many entries."""
    side = (math.isqrt(entries) + 1) // 2
    if (2 * side - 1) ** 2 != entries:
        raise UserError(f"a table of {entries} biases is not one of square windows")
    return side


def _space(
    state: Mapping[str, Tensor],
    size: tuple[int, int],
    eps: float,
    name: str,
    window: Callable[[int, int, Tensor], int],
) -> Space:
    """Return the one-point space of a network with these shapes.

    Args:
        window: returns the side of a block's windows, given its stage, place and table of biases.
    """
    try:
        stages: list[dict[str, Any]] = []
        head_dims = set()
        while any(key.startswith(f"layers.{len(stages)}.") for key in state):
            stage, blocks = len(stages), list[dict[str, Any]]()
            while f"layers.{stage}.blocks.{len(blocks)}.norm1.weight" in state:
                place = len(blocks)
                block = f"layers.{stage}.blocks.{place}"
                table, width = state[f"{block}.attn.relative_position_bias_table"], len(state[f"{block}.norm1.weight"])
                heads, hidden = table.shape[1], len(state[f"{block}.mlp.fc1.weight"])
                head_dims.add(len(state[f"{block}.attn.qkv.weight"]) // (3 * heads))
                blocks.append(
                    {"window": [window(stage, place, table)], "heads": [heads], "mlp_ratio": [ratio_of(width, hidden)]}
                )
            stages.append({"width": [width], "depth": [len(blocks)], "blocks": blocks})
        channels, patch = state["patch_embed.proj.weight"].shape[1:3]
        classes = len(state.get("head.bias", state.get("head.fc.bias", ())))
    except (KeyError, IndexError, UnboundLocalError) as error:
        raise UserError(f"{name} is not a Swin transformer that an s3 space can express: it lacks {error}") from error
    if len(head_dims) != 1 or not classes:
        what = "no classifier" if not classes else f"heads of {' and '.join(map(str, sorted(head_dims)))} channels"
        raise UserError(f"{name} has {what}: no s3 space can express it")
    definition = {
        "family": "s3",
        "input": {"size": list(size), "channels": channels},
        "classes": classes,
        "constants": {"patch_size": patch, "head_dim": head_dims.pop(), "norm_eps": eps},
        "dimensions": {"stages": stages},
    }
    return Space.from_dict(definition, name)


def _read(state: Mapping[str, Tensor], space: Space, name: str, timm: bool) -> dict[str, Tensor]:
    """Return the parameters of a one-point space by our names."""
    with torch.device("meta"):
        ours = S3Supernet(space).state_dict()
    left = {key: value for key, value in state.items() if not key.endswith(_BUFFERS)}
    read = {}
    for key, tensor in ours.items():
        source = _source(key, timm)
        if source not in left:
            hint = "" if timm else "; a file of timm's layout is read by raynas import timm NAME --weights FILE"
            raise UserError(f"{name} has no {source}, which {space.name} needs{hint}")
        value = left.pop(source).float()
        heads, head_dim = tensor.shape[0], space.constants.head_dim
        if key.endswith("bias.table") and value.numel() == tensor.numel():
            value = value.T.reshape(heads, *tensor.shape[1:])
        elif ".qkv." in key and head_dim and len(value) % (3 * head_dim) == 0:
            value = value.unflatten(0, (3, -1, head_dim)).transpose(0, 1).flatten(0, 2)
        if value.shape != tensor.shape:
            found, wanted = list(value.shape), list(tensor.shape)
            raise UserError(f"{name} has {source} of shape {found}, where space {space.name} has {wanted}")
        read[key] = value.clone(memory_format=torch.contiguous_format)
    if left:
        raise UserError(f"{name} has {next(iter(left))!r}, which space {space.name} has no use for")
    return read


def _source(key: str, timm: bool) -> str:
    """Return their name of one of our parameters."""
    path, _, leaf = key.rpartition(".")
    part = re.fullmatch(r"stages\.(\d+)\.(merging|blocks\.\d+)\.(\w+)", path)
    if not part:
        return f"head.fc.{leaf}" if timm and path == "head" else f"{_NETWORK.get(path, path)}.{leaf}"
    stage, place, layer = int(part[1]), part[2], part[3]
    if place == "merging":
        return f"layers.{stage if timm else stage - 1}.{_MERGING[layer]}.{leaf}"
    if layer == "bias":
        return f"layers.{stage}.{place}.attn.relative_position_bias_table"
    return f"layers.{stage}.{place}.{_BLOCK.get(layer, layer)}.{leaf}"
