"""Weights as safetensors files, and their fingerprint."""

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


def save_weights(model: torch.nn.Module | Mapping[str, Tensor], path: str | Path) -> None:
    """Write a model's parameters (or a state dict) as one safetensors file."""
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    safetensors.torch.save_file({name: tensor.detach().contiguous() for name, tensor in state.items()}, path)


def load_weights(path: str | Path) -> dict[str, Tensor]:
    """Read a safetensors file.

    Raises:
        UserError: it is missing, or not such a file.
    """
    try:
        return safetensors.torch.load_file(path)
    except FileNotFoundError as error:
        raise UserError(f"{path}: there is no such file") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(f"{path}: not a safetensors file: {error}") from error


def parse_weights(content: bytes, name: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file that has been read.

    Args:
        content: of the file.
        name: of the file, for messages.

    Raises:
        UserError: it is not such a file, or only a part of one.
    """
    try:
        return safetensors.torch.load(content)
    except safetensors.SafetensorError as error:
        raise UserError(f"{name} is not a safetensors file: {error}") from error


def load_supernet(space: Space, weights: str | Path | Mapping[str, Tensor]) -> Supernet:
    """The supernet of a space with given weights.

    A head for another number of classes is left as initialised, and said so: the rest is what transfers.

    Args:
        weights: a safetensors file, or a state dict (whose tensors the supernet then uses, without a copy).

    Raises:
        UserError: the file cannot be read, or its tensors are not those of the space's supernet.
    """
    state = dict(weights) if isinstance(weights, Mapping) else load_weights(weights)
    with torch.device("meta"):
        supernet = build_supernet(space)
    state = _with_own_head(state, space)
    if problem := mismatch(state, supernet.state_dict()):
        raise UserError(f"the weights are not of space {space.name}: {problem}")
    return adopt(supernet, state)


def adapt_channels(state: dict[str, Tensor], space: Space, channels: int) -> dict[str, Tensor]:
    """The weights of a space's network for images of another number of channels, with a message.

    As timm does it: one channel gets the sum of all; more get the weights in turn, scaled so that the same image in
    every channel gives the same.
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
    """How a state dict differs from a wanted one in names and shapes: the first difference, and how many more."""
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
    """The state with fresh heads where its heads are for another number of classes."""
    head = state.get("head.weight")
    if head is None or head.ndim != 2 or len(head) == space.classes:
        return state
    print(f"the weights are for {len(head)} classes: a new head for {space.classes} classes is initialised")
    fresh = {}
    for name in ("head", "token_head"):
        if f"{name}.weight" in state:
            fresh[f"{name}.weight"] = new_parameter(space.classes, head.shape[1]).detach().to(head)
            fresh[f"{name}.bias"] = torch.zeros(space.classes).to(head)
    return {**state, **fresh}


def weights_fingerprint(state: Mapping[str, Tensor]) -> str:
    """Twelve hex digits hashed from names, types, shapes and bytes, whatever the order and the device."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(bytes(tensor.view(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()[:12]
