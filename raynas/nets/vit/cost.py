"""What a vit subnet costs, from its encoded choices alone (numpy, no torch).

With E the width, N the tokens, Q = heads x head_dim and M the hidden width, a block executes 3 N E Q (query, key,
value), 2 N^2 Q (scores and weighted sum), N Q E (projection) and 2 N E M (MLP) multiply-accumulates. Where the query
width is a choice of its own, Q is that: how many heads it is cut into costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raynas.nets.terms import Counts, Term
from raynas.space import Space
from raynas.space.families.rules import hidden_width


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


def slots(space: Space) -> int:
    """How many blocks a subnet has at most: the largest depth, every block that may be kept, what a budget holds."""
    if space.has("depth"):
        return int(max(space["depth"].choices))
    if space.has("block.heads"):
        _, query, mlp = block_genes(space, 0)  # the cheapest block leaves room for most
        patches, widths = np.meshgrid(space["patch_size"].choices, space["width"].choices)
        return int(stacked_depth(space, patches, widths, min(space[query].choices), min(space[mlp].choices)).max())
    return sum(dimension.template == "blocks.*.kept" for dimension in space.dimensions)


def gene(space: Space, index: int, leaf: str) -> str:
    """The dimension that says `leaf` of a block: the block's own, or the one of all where one block is stacked."""
    stacked = f"block.{leaf}"
    return stacked if space.has(stacked) else f"blocks.{index}.{leaf}"


def block_genes(space: Space, index: int) -> tuple[str, str, str]:
    """The dimensions of a block's heads, query width (the heads again where they determine it), and MLP."""
    heads = gene(space, index, "heads")
    query = gene(space, index, "query_width")
    ratio = gene(space, index, "mlp_ratio")
    return heads, query if space.has(query) else heads, ratio if space.has(ratio) else gene(space, index, "mlp_width")


def hidden_channels(width: Any, gene: str, value: Any) -> Any:
    """Hidden channels of an MLP, from the value of its dimension: a ratio to the embedding width, or the width."""
    return hidden_width(width, value) if gene.endswith("mlp_ratio") else value


def stacked_depth(space: Space, patch_size: Any, width: Any, query: Any, mlp: Any) -> Any:
    """How many equal blocks `depth_macs` has room for, between one and `max_depth`."""
    values = [np.asarray(value) for value in (patch_size, width, query, mlp)]
    patch_size, width, query, mlp = np.broadcast_arrays(*values)
    fixed = _patch_embedding(space, patch_size, width).macs + _head(space, width).macs
    hidden = _mlp(space, block_genes(space, 0)[2], patch_size, width, mlp).macs
    block = _attention(space, patch_size, width, query).macs + hidden
    room = (space.constants.depth_macs - fixed) // block
    return np.clip(room, 1, space.constants.max_depth).astype(np.int64)


def terms(space: Space) -> list[Term]:
    """The terms of a vit space; their sum is the cost of a subnet."""
    listed = [
        Term("patch_embedding", ("patch_size", "width"), partial(_patch_embedding, space)),
        Term("positions", ("patch_size", "width"), partial(_positions, space)),
    ]
    for index in range(slots(space)):
        heads, query, mlp = block_genes(space, index)
        if not space.has(heads):  # a block that is never kept
            continue
        attention, hidden = partial(_attention, space), partial(_mlp, space, mlp)
        if space.has("block.heads"):
            # Whether the block is there at all depends on the depth, which all of its choices may decide.
            depth = ("depth",) if space.has("depth") else ()
            names = ("patch_size", "width", query, mlp, *depth)
            listed.append(Term(f"blocks.{index}.attention", names, partial(_stacked, space, index, attention, 2)))
            listed.append(Term(f"blocks.{index}.mlp", names, partial(_stacked, space, index, hidden, 3)))
            continue
        listed += [
            Term(f"blocks.{index}.attention", ("patch_size", "width", query), attention),
            Term(f"blocks.{index}.mlp", ("patch_size", "width", mlp), hidden),
        ]
    return [*listed, Term("head", ("width",), partial(_head, space))]


def _stacked(space: Space, index: int, count: Callable[..., Counts], gene: int, *values: np.ndarray) -> Counts:
    """One of the equal blocks, where the depth reaches it; `gene` is which value `count` takes."""
    depth = values[4] if len(values) > 4 else stacked_depth(space, *values)
    counts = count(values[0], values[1], values[gene])
    return Counts(*(np.where(depth > index, each, 0) for each in counts))


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


def _attention(space: Space, patch_size: np.ndarray, width: np.ndarray, query: np.ndarray) -> Counts:
    """The first half of a block: norm, query, key, value, attention, projection; `query` in heads or in channels."""
    constants = space.constants
    acts = query > 0
    tokens = _tokens(space, patch_size)
    heads, channels = query, query * (constants.head_dim or 1)
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


def _mlp(space: Space, gene: str, patch_size: np.ndarray, width: np.ndarray, value: np.ndarray) -> Counts:
    """The second half of a block: norm and two linear layers."""
    acts = value > 0
    hidden = hidden_channels(width, gene, value)
    macs = 2 * _tokens(space, patch_size) * width * hidden
    return Counts(macs, 2 * width * hidden + hidden + acts * 3 * width, macs)


def _head(space: Space, width: np.ndarray) -> Counts:
    """The final norm and the classifiers: of the image, which reads one vector, and of patches, where there is one."""
    macs = width * space.classes
    heads = 1 + int(space.constants.token_head)
    return Counts(macs, heads * (macs + space.classes) + 2 * width, macs)
