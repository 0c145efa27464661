"""Where the entries of an extracted subnet lie in its supernet, read off the tensors themselves, for any family."""

from __future__ import annotations

import copy

import torch

from raynas.nets.sharing import Side
from raynas.nets.supernet import Supernet
from raynas.space import Arch


def channels_of(supernet: Supernet, arch: Arch, side: Side | None = None) -> dict[str, tuple[list[int], ...]]:
    """For each tensor of `supernet.extract(arch, side)` and each of its axes, the supernet's channels that it took.

    Every entry of the supernet is tagged with its place in its tensor. An entry of the subnet whose place along an axis
    does not follow from its own place along that axis alone is an error.
    """
    tagged = copy.deepcopy(supernet)
    held = tagged.state_dict()  # parameters and saved buffers, over the supernet's own memory
    for name, tensor in held.items():
        assert tensor.numel() <= 2**24, f"{name}: float32 does not tell so many entries apart"
        tensor.copy_(torch.arange(tensor.numel(), dtype=tensor.dtype).view(tensor.shape))
    found = {}
    for name, tensor in tagged.extract(arch, side).state_dict().items():
        if tensor.ndim:
            places = torch.unravel_index(tensor.long(), held[name].shape)
            lines = [place.movedim(axis, 0).reshape(tensor.shape[axis], -1) for axis, place in enumerate(places)]
            for axis, line in enumerate(lines):
                assert torch.equal(line, line[:, :1].expand_as(line)), f"{name}: axis {axis} is mixed with another"
            found[name] = tuple(line[:, 0].tolist() for line in lines)
    return found
