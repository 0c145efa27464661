"""Weights in safetensors files: reading, fitting to a space, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.layers import new_parameter
from raynas.nets.supernet import Supernet, adopt
from raynas.space import Space

HEADS = ("head", "token_head", "distillation_head")
"""Names of the classifiers."""


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        UserError: the file is missing or not a safetensors file.
    """
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file: {error}") from error


def parse_weights(content: bytes, name: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file's content.

    Args:
        name: the file's name, for messages.

    Raises:
        UserError: the content is not a whole safetensors file.
    """
    try:
        return safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"{name} is damaged or no safetensors file ({error}): restore it, or write it anew") from error


def weights_file(weights: Mapping[str, Tensor]) -> bytes:
    """Return weights as the content of a safetensors file."""
    return safetensors.torch.save({name: tensor.detach().contiguous() for name, tensor in weights.items()})


def load_supernet(space: Space, weights: str | Path | Mapping[str, Tensor]) -> Supernet:
    """Build the supernet of a space with given weights.

    Heads for another number of classes are initialised anew, with a message; the rest transfers.

    Args:
        weights: a safetensors file, or a state dict, whose tensors are used without a copy.

    Raises:
        UserError: the file cannot be read, or its tensors do not fit the space's supernet.
    """
    state = dict(weights) if isinstance(weights, Mapping) else load_weights(weights)
    with torch.device("meta"):
        supernet = build_supernet(space)
    state = _with_own_head(state, space)
    if problem := mismatch(state, supernet.state_dict()):
        raise UserError(f"the weights are not of space {space.name}: {problem}")
    return adopt(supernet, state)


def adapt_channels(state: dict[str, Tensor], space: Space, channels: int) -> dict[str, Tensor]:
    """Adapt the weights of a space's network to another number of image channels, with a message.

    As in timm, a single channel gets the sum of all; several get the weights in turn, scaled so that equal channels
    give the same output.
    """
    if channels == space.channels:
        return state
    print(f"the weights are for {space.channels} channel(s): the first convolution is adapted to {channels}")
    with torch.device("meta"):
        before, after = (build_supernet(each).state_dict() for each in (space, space.with_input(channels=channels)))
    adapted = dict(state)
    for name in [name for name, tensor in before.items() if tensor.shape != after[name].shape and name in state]:
        weight = state[name].float()
        if channels == 1:
            new = weight.sum(1, keepdim=True)
        else:
            new = weight[:, torch.arange(channels) % space.channels] * (space.channels / channels)
        adapted[name] = new.to(state[name].dtype)
    return adapted


def mismatch(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str | None:
    """Describe the first difference of a state dict to a wanted one in names or shapes, and count the others."""
    problems = [f"{name} is missing" for name in wanted if name not in state]
    problems += [f"{name} is unknown" for name in state if name not in wanted]
    problems += [
        f"{name} is {list(state[name].shape)} instead of {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in state and state[name].shape != tensor.shape
    ]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{problems[0]}{more}" if problems else None


def _with_own_head(state: dict[str, Tensor], space: Space) -> dict[str, Tensor]:
    """Return the state with new heads if its heads are for another number of classes."""
    head = state.get("head.weight")
    if head is None or head.ndim != 2 or len(head) == space.classes:
        return state
    print(f"the weights are for {len(head)} classes: a new head for {space.classes} classes is initialised")
    fresh = {}
    for name in HEADS:
        if f"{name}.weight" in state:
            fresh[f"{name}.weight"] = new_parameter(space.classes, head.shape[1]).detach().to(head)
            fresh[f"{name}.bias"] = torch.zeros(space.classes).to(head)
    return {**state, **fresh}


def new_classifiers(space: Space) -> dict[str, Tensor]:
    """Return the parameters of new classifiers for the supernet of a space."""
    with torch.device("meta"):
        wanted = build_supernet(space).state_dict()
    heads = {name: tensor.shape for name, tensor in wanted.items() if name.partition(".")[0] in HEADS}
    return {
        name: new_parameter(*shape).detach() if len(shape) > 1 else torch.zeros(shape) for name, shape in heads.items()
    }


def weights_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return twelve hex digits, the hash of names, types, shapes and bytes, independent of order and device."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(bytes(tensor.view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()[:12]
