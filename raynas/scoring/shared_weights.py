"""A module taken apart into plain arrays and put together over them without a copy.

Arrays in Ray's object store are mapped by every process of a node: a replica built over them has no weights of its own.
The mapping is writable through torch, and a write would change everybody's weights, so whoever maps them checks sums.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]

_BITS = {torch.bfloat16: torch.int16}  # what numpy has no name for travels as integers of the same width


@dataclass(frozen=True)
class Skeleton:
    """A module on the meta device, and the torch type of each of its tensors."""

    module: nn.Module
    dtypes: dict[str, torch.dtype]


def take_apart(module: nn.Module) -> tuple[Skeleton, Arrays]:
    """A module's structure without memory, and its parameters and buffers as numpy arrays over the module's memory."""
    memo: dict[int, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    arrays: Arrays = {}
    for name, tensor in _tensors(module):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
        dtypes[name] = tensor.dtype
        plain = tensor.detach().cpu().contiguous()
        arrays[name] = plain.view(_BITS.get(plain.dtype, plain.dtype)).numpy()
    # Deep-copying with these in the memo leaves the weights where they are.
    return Skeleton(copy.deepcopy(module, memo), dtypes), arrays


def put_together(skeleton: Skeleton, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """The module over these arrays, in eval mode, nothing requiring a gradient; the skeleton is filled in."""
    module = skeleton.module
    for name, _ in list(_tensors(module)):
        tensor = over(arrays[name]).view(skeleton.dtypes[name])
        path, _, leaf = name.rpartition(".")
        owner = module.get_submodule(path)
        if leaf in owner._parameters:
            owner._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
        else:
            owner._buffers[leaf] = tensor
    return module.eval()


def over(array: np.ndarray) -> Tensor:
    """A tensor over an array's memory, read-only or not; it must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def checksums(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """A checksum of every array's content, to show afterwards that none was written to."""
    return {name: zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) for name, array in arrays.items()}


def changed(arrays: Mapping[str, np.ndarray], before: Mapping[str, int]) -> list[str]:
    """Names of the arrays whose content is not what it was."""
    return [name for name, value in checksums(arrays).items() if before[name] != value]


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
