"""What a vit subnet costs, from its encoded choices alone (numpy, no torch).

With E the width, N the tokens, Q = heads x head_dim and M the hidden width, a block executes 3 N E Q (query, key,
value), 2 N^2 Q (scores and weighted sum), N Q E (projection) and 2 N E M (MLP) multiply-accumulates.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from raynas.nets.terms import Counts, Term
from raynas.space import Space


def hidden_width(width: Any, ratio: Any) -> Any:
    """Hidden channels of an MLP: floor(width x ratio), for numbers (an int) or arrays (int64) alike."""
    product = np.floor(np.multiply(width, ratio))
    return int(product) if np.ndim(product) == 0 else product.astype(np.int64)


def patch_grid(size: tuple[int, int], patch_size: Any) -> tuple[Any, Any]:
    """Rows and columns of patches on an image of (height, width) pixels; a patch that overhangs is padded."""
    return -(-size[0] // patch_size), -(-size[1] // patch_size)


def relative_groups(rows: Any, columns: Any, class_token: bool, head_dim: int) -> Any:
    """Groups of keys that relative position tells apart: grid rows, grid columns and the class token.

    Queries, keys and values are that many channels wider inside the attention product. Empty groups fill the head up to
    a multiple of 16 channels, with which the product runs faster than without them.
    """
    groups = rows + columns + int(class_token)
    return groups + -(head_dim + groups) % 16


def relative_entries(distance: int) -> int:
    """Entries that a query is multiplied with: two tables of 2 R + 2, and the sum of both tables' first entries."""
    return 2 * (2 * distance + 2) + 1


def terms(space: Space) -> list[Term]:
    """The terms of a vit space; their sum is the cost of a subnet."""
    listed = [
        Term("patch_embedding", ("patch_size", "width"), partial(_patch_embedding, space)),
        Term("positions", ("patch_size", "width"), partial(_positions, space)),
    ]
    for index in range(int(max(space["depth"].choices))):
        block = f"blocks.{index}"
        listed += [
            Term(f"{block}.attention", ("patch_size", "width", f"{block}.heads"), partial(_attention, space)),
            Term(f"{block}.mlp", ("patch_size", "width", f"{block}.mlp_ratio"), partial(_mlp, space)),
        ]
    return [*listed, Term("head", ("width",), partial(_head, space))]


def _tokens(space: Space, patch_size: np.ndarray) -> np.ndarray:
    return math.prod(patch_grid(space.input_size, patch_size)) + int(space.constants.class_token)


def _patch_embedding(space: Space, patch_size: np.ndarray, width: np.ndarray) -> Counts:
    weights = space.channels * patch_size**2 * width
    macs = math.prod(patch_grid(space.input_size, patch_size)) * weights
    return Counts(macs, weights + width, macs)


def _positions(space: Space, patch_size: np.ndarray, width: np.ndarray) -> Counts:
    """Absolute positions and the class token: parameters alone."""
    nothing = np.zeros_like(width)
    return Counts(nothing, (_tokens(space, patch_size) + int(space.constants.class_token)) * width, nothing)


def _attention(space: Space, patch_size: np.ndarray, width: np.ndarray, heads: np.ndarray) -> Counts:
    """The first half of a block: norm, query, key, value, attention, projection."""
    constants = space.constants
    acts = heads > 0
    tokens = _tokens(space, patch_size)
    channels = heads * constants.head_dim
    linear = tokens * 4 * width * channels
    macs = paper_macs = linear + 2 * tokens**2 * channels
    biases = (0 if constants.qkv_bias == "none" else 3 * channels) + acts * width
    params = 4 * width * channels + biases + acts * 2 * width
    if constants.relative_position is not None:
        entries = relative_entries(constants.relative_position)
        grid = patch_grid(space.input_size, patch_size)
        groups = relative_groups(*grid, constants.class_token, constants.head_dim)
        # The paper's way: each pair's embedding times the query, and weighted and summed, so twice N^2 Q again. Ours:
        # query times every entry, a wider attention product, and the summed weights times every entry.
        paper_macs = macs + 2 * tokens**2 * channels
        macs = macs + 2 * tokens**2 * heads * groups + 2 * tokens * channels * entries
        params = params + acts * 4 * (2 * constants.relative_position + 2) * constants.head_dim
    return Counts(macs, params, paper_macs)


def _mlp(space: Space, patch_size: np.ndarray, width: np.ndarray, mlp_ratio: np.ndarray) -> Counts:
    """The second half of a block: norm and two linear layers."""
    acts = mlp_ratio > 0
    hidden = hidden_width(width, mlp_ratio)
    macs = 2 * _tokens(space, patch_size) * width * hidden
    return Counts(macs, 2 * width * hidden + hidden + acts * 3 * width, macs)


def _head(space: Space, width: np.ndarray) -> Counts:
    """The final norm and the classifier, which reads one vector an image."""
    macs = width * space.classes
    return Counts(macs, macs + space.classes + 2 * width, macs)
