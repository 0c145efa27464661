"""Modules as plain arrays, and modules over such arrays without a copy.

Every process of a node maps the arrays in Ray's object store, so that replicas have no own copy of the weights. torch
can write to the mapping, which would change all replicas' weights, so checksums are compared.
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

_BITS = {torch.bfloat16: torch.int16}  # types that numpy lacks are sent as integers of the same width


@dataclass(frozen=True)
class Skeleton:
    """A module on the meta device, and the torch type of each of its tensors."""

    module: nn.Module
    dtypes: dict[str, torch.dtype]


def take_apart(module: nn.Module) -> tuple[Skeleton, Arrays]:
    """Return a module's structure without memory, and its parameters and buffers as arrays over its memory."""
    memo: dict[int, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    arrays: Arrays = {}
    for name, tensor in _tensors(module):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
        dtypes[name] = tensor.dtype
        plain = tensor.detach().cpu().contiguous()
        arrays[name] = plain.view(_BITS.get(plain.dtype, plain.dtype)).numpy()
    # The memo keeps the deep copy from copying the weights.
    return Skeleton(copy.deepcopy(module, memo), dtypes), arrays


def put_together(skeleton: Skeleton, arrays: Mapping[str, np.ndarray]) -> nn.Module:
    """Fill a skeleton with arrays, and return the module in eval mode, without gradients."""
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
    """Return a tensor over an array's memory, which may be read-only: the tensor must not be written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def checksums(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return a checksum of every array."""
    return {name: zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data) for name, array in arrays.items()}


def changed(arrays: Mapping[str, np.ndarray], before: Mapping[str, int]) -> list[str]:
    """Return the names of the arrays that have changed since `before`."""
    return [name for name, value in checksums(arrays).items() if before[name] != value]


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)
