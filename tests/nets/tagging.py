"""Where the entries of an extracted subnet lie in its supernet, read off the tensors themselves, for any family."""

from __future__ import annotations

import copy

import torch

from raynas.nets.sharing import Side
from raynas.nets.supernet import Supernet
from raynas.space import Arch


def channels_of(supernet: Supernet, arch: Arch, side: Side | None = None) -> dict[str, tuple[list[int], ...]]:
    """For each tensor of `supernet.extract(arch, side)` and each of its axes, the supernet's channels that it took.

    One axis after the other, every entry of the supernet is tagged with its place along that axis. An entry whose tag
    does not follow from its place along the axis alone is an error.
    """
    tagged = copy.deepcopy(supernet)
    found: dict[str, list[list[int]]] = {}
    held = tagged.state_dict().values()  # parameters and saved buffers, over the supernet's own memory
    for axis in range(max(tensor.ndim for tensor in held)):
        for tensor in held:
            if axis < tensor.ndim:
                places = torch.arange(tensor.shape[axis], dtype=tensor.dtype)
                tensor.copy_(places.view([-1 if i == axis else 1 for i in range(tensor.ndim)]))
        for name, tensor in tagged.extract(arch, side).state_dict().items():
            if axis < tensor.ndim:
                tags = tensor.movedim(axis, 0).flatten(1) if tensor.ndim > 1 else tensor[:, None]
                assert torch.equal(tags, tags[:, :1].expand_as(tags)), f"{name}: axis {axis} is mixed with another"
                found.setdefault(name, []).append([int(tag) for tag in tags[:, 0]])
    return {name: tuple(axes) for name, axes in found.items()}
