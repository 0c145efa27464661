"""Import of weights from ViT-ResNAS's released supernets and the networks found with them.

The released layout numbers blocks and reductions consecutively. Its rows are all queries, then all keys, then all
values, and ours go head by head. A single network may skip the numbers of dropped blocks, so blocks are matched in
order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from raynas.errors import UserError
from raynas.families.vit_res.model import VitResSupernet
from raynas.nets.released import Checkpoint, read_parameters
from raynas.space import Space, load_arch, load_space

SUPERNETS = ("vit_resnas/tiny", "vit_resnas/small")
NETWORKS = tuple(f"vit_resnas/published/{name}" for name in ("vit_res_tiny", "tiny", "small", "medium"))
"""The released networks: spaces of the authors' supernets, and single networks."""

_UNITS = {"first": "conv1", "second": "conv2", "third": "conv3"}
_LAYERS = {"conv": "conv", "norm": "bn"}
_NETWORK = {
    "embedding.proj.weight": "patch_embed.conv_proj.weight",
    "embedding.proj.bias": "patch_embed.conv_proj.bias",
    "embedding.class_token": "tokens",
    "embedding.position": "pos_embed",
    "head.weight": "cls_head.weight",
    "head.bias": "cls_head.bias",
    "token_head.weight": "patch_head.weight",
    "token_head.bias": "patch_head.bias",
}
_REDUCTION = {"norm": "norm", "conv": "patch_reduce", "linear": "token_transform", "position": "pos_embed"}
_BLOCK = {
    "norm1": "norm1",
    "qkv": "attn.qkv",
    "proj": "attn.proj",
    "norm2": "norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}
"""Released names by our names."""


def read_released(checkpoint: Checkpoint, space: Space | None = None) -> tuple[Space, dict[str, Tensor]]:
    """Read a checkpoint of a supernet or a single network in the layout of ViT-ResNAS's release.

    Averaged weights are preferred, as in the release.

    Args:
        checkpoint: a file, or its content: the parameters, or a mapping that holds them as `model_ema` or `model`.
        space: the space to read it for; a one-point space for a single network. By default the released supernet or
            network with these shapes, for the checkpoint's image size, channels and classes.

    Returns:
        The space, and the tensors of its supernet by our names, floating ones in float32.

    Raises:
        UserError: the layout is another, or the checkpoint does not fit the space; the message names the fault.
    """
    state = read_parameters(checkpoint, ["model_ema", "model"], "a ViT-ResNAS checkpoint")
    if space is None:
        space = _recognise(state)
    elif space.family != "vit_res":
        raise UserError(f"space {space.name}: a ViT-ResNAS checkpoint needs a space of family vit_res")
    shapes = _shapes(space)
    sources = _sources(state, shapes)
    problem = next(_problems(state, shapes, sources), None)
    if problem is not None:
        raise UserError(f"the checkpoint is not of space {space.name}: {problem}")
    read = {}
    for name, released in sources.items():
        value = state[released].float() if state[released].is_floating_point() else state[released]
        if ".qkv." in name:  # [3, heads, head_dim] to [heads, 3, head_dim]
            head_dim = space.constants.head_dims[int(name.split(".")[1])]
            value = value.unflatten(0, (3, -1, head_dim)).transpose(0, 1).flatten(0, 2)
        read[name] = value.clone(memory_format=torch.contiguous_format)
    return space, read


def _shapes(space: Space) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a space's supernet, by our names."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in VitResSupernet(space).state_dict().items()}


def _problems(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], sources: Mapping[str, str]
) -> Iterator[str]:
    """Yield differences between a checkpoint and the tensors that a space needs."""
    for name, shape in shapes.items():
        released = sources.get(name)
        if released is None:
            yield f"it has fewer stages or blocks, and nothing for {name}"
        elif released not in state:
            yield f"it lacks {released!r}"
        elif tuple(state[released].shape) != shape:
            yield f"its {released} is {list(state[released].shape)} instead of {list(shape)}"
    used = set(sources.values())
    for released in state:
        if released not in used:
            yield f"there is no use for its {released!r}"


def _sources(state: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, str]:
    """Return the released names by our names, except for stages and blocks that the checkpoint lacks."""
    stages = _stages(state)
    running: list[list[str]] = [[] for _ in stages]  # our blocks of each stage, in their order
    sources = {}
    for name in names:
        unit = re.fullmatch(r"stem\.(\w+)\.(\w+)\.(\w+)", name)
        part = re.fullmatch(r"stages\.(\d+)\.(reduction|blocks\.\d+)\.(\w+)(.*)", name)
        if unit:
            sources[name] = f"patch_embed.{_UNITS[unit[1]]}.{_LAYERS[unit[2]]}.{unit[3]}"
        elif not part:
            sources[name] = _NETWORK.get(name, name)
        elif int(part[1]) < len(stages):
            reduction, blocks = stages[int(part[1])]
            places = running[int(part[1])]
            if part[2] == "reduction":
                sources[name] = f"blocks.{reduction}.{_REDUCTION[part[3]]}{part[4]}"
                continue
            if part[2] not in places:
                places.append(part[2])
            if places.index(part[2]) < len(blocks):
                sources[name] = f"blocks.{blocks[places.index(part[2])]}.{_BLOCK[part[3]]}{part[4]}"
    return sources


def _stages(state: Mapping[str, Tensor]) -> list[tuple[int | None, list[int]]]:
    """Return the number of each stage's reduction (None in the first) and the numbers of its blocks."""
    stages: list[tuple[int | None, list[int]]] = [(None, [])]
    for index in sorted({int(name.split(".")[1]) for name in state if re.match(r"blocks\.\d+\.", name)}):
        if f"blocks.{index}.patch_reduce.weight" in state:
            stages.append((index, []))
        else:
            stages[-1][1].append(index)
    return stages


def _recognise(state: Mapping[str, Tensor]) -> Space:
    """Return the space of the released supernet or network with a checkpoint's shapes, for its images and classes."""
    try:
        side = round((state["pos_embed"].shape[1] - 1) ** 0.5)
        channels = state["patch_embed.conv1.conv.weight"].shape[1]
        classes = state["cls_head.weight"].shape[0]
    except KeyError as error:
        raise UserError(f"not a ViT-ResNAS checkpoint: it lacks {error}") from error
    except IndexError as error:
        raise UserError("not a ViT-ResNAS checkpoint: its pos_embed or a weight is a single number") from error
    for name in (*SUPERNETS, *NETWORKS):
        space = load_space(name) if name in SUPERNETS else (arch := load_arch(name)).space.fix(arch)
        try:
            space = space.with_input(side * space.constants.patch_size, channels, classes)
        except UserError:  # its grid cannot be halved
            continue
        shapes = _shapes(space)
        if next(_problems(state, shapes, _sources(state, shapes)), None) is None:
            return space
    raise UserError(
        f"the checkpoint is none of {', '.join((*SUPERNETS, *NETWORKS))}; say which space it is of "
        "(`--space`; for a network, a space of that arch alone)"
    )
