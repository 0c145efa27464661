"""Costs of vit subnets, computed from encoded choices (numpy, no torch).

With E the width, N the tokens, Q = heads x head_dim and M the hidden width, a block executes 3 N E Q (query, key,
value), 2 N^2 Q (scores and weighted sum), N Q E (projection) and 2 N E M (MLP) multiply-accumulates. If the query width
is searched, Q is its choice, and the number of heads does not change the cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raynas.nets.terms import Counts, Term
from raynas.space import Space
from raynas.space.rules import hidden_width


def patch_grid(size: tuple[int, int], patch_size: Any) -> tuple[Any, Any]:
    """Return rows and columns of patches on an image of (height, width) pixels; partial patches are padded."""
    return -(-size[0] // patch_size), -(-size[1] // patch_size)


def relative_groups(rows: Any, columns: Any, class_token: bool, head_dim: int) -> Any:
    """Return the number of key groups of relative position: grid rows, grid columns and the class token.

    Queries, keys and values are that many channels wider inside the attention product. Empty groups pad the head to a
    multiple of 16 channels, which makes the product faster.
    """
    groups = rows + columns + int(class_token)
    return groups + -(head_dim + groups) % 16


def relative_entries(distance: int) -> int:
    """Return the number of entries multiplied with a query: two tables of 2 R + 2, and the sum of first entries."""
    return 2 * (2 * distance + 2) + 1


def slots(space: Space) -> int:
    """Return the largest number of blocks: the largest depth, all blocks that may be kept, or the most in a budget."""
    if space.has("depth"):
        return int(max(space["depth"].choices))
    if space.has("block.heads"):
        _, query, mlp = block_genes(space, 0)  # the cheapest block allows the most
        patches, widths = np.meshgrid(space["patch_size"].choices, space["width"].choices)
        return int(stacked_depth(space, patches, widths, min(space[query].choices), min(space[mlp].choices)).max())
    return sum(dimension.template == "blocks.*.kept" for dimension in space.dimensions)


def gene(space: Space, index: int, leaf: str) -> str:
    """Return the dimension of a block's `leaf`: the block's own, or the common one if one block is stacked."""
    stacked = f"block.{leaf}"
    return stacked if space.has(stacked) else f"blocks.{index}.{leaf}"


def block_genes(space: Space, index: int) -> tuple[str, str, str]:
    """Return the dimensions of a block's heads, query width (the heads again if they determine it), and MLP."""
    heads = gene(space, index, "heads")
    query = gene(space, index, "query_width")
    ratio = gene(space, index, "mlp_ratio")
    return heads, query if space.has(query) else heads, ratio if space.has(ratio) else gene(space, index, "mlp_width")


def hidden_channels(width: Any, gene: str, value: Any) -> Any:
    """Return the hidden channels of an MLP, from its dimension's value: a ratio to the embedding width, or a width."""
    return hidden_width(width, value) if gene.endswith("mlp_ratio") else value


def stacked_depth(space: Space, patch_size: Any, width: Any, query: Any, mlp: Any) -> Any:
    """Return the number of equal blocks that fit into `depth_macs`, between one and `max_depth`."""
    values = [np.asarray(value) for value in (patch_size, width, query, mlp)]
    patch_size, width, query, mlp = np.broadcast_arrays(*values)
    fixed = _patch_embedding(space, patch_size, width).macs + _head(space, width).macs
    hidden = _mlp(space, block_genes(space, 0)[2], patch_size, width, mlp).macs
    block = _attention(space, patch_size, width, query).macs + hidden
    room = (space.constants.depth_macs - fixed) // block
    return np.clip(room, 1, space.constants.max_depth).astype(np.int64)


def terms(space: Space) -> list[Term]:
    """Return the terms of a vit space, which add up to the cost of a subnet."""
    listed = [
        Term("patch_embedding", ("patch_size", "width"), partial(_patch_embedding, space)),
        Term("positions", ("patch_size", "width"), partial(_positions, space)),
    ]
    for index in range(slots(space)):
        heads, query, mlp = block_genes(space, index)
        if not space.has(heads):  # never kept
            continue
        attention, hidden = partial(_attention, space), partial(_mlp, space, mlp)
        if space.has("block.heads"):
            # The block is active if the depth reaches it, and the depth may depend on all of its choices.
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
    """Return the cost of one of the equal blocks, 0 beyond the depth; `gene` is the index of the value for `count`."""
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
    """Return the cost of absolute positions and the class token, which is parameters only."""
    nothing = np.zeros_like(width)
    return Counts(nothing, (_tokens(space, patch_size) + int(space.constants.class_token)) * width, nothing)


def _attention(space: Space, patch_size: np.ndarray, width: np.ndarray, query: np.ndarray) -> Counts:
    """Return the cost of a block's first half, norm, attention and projections; `query` is in heads or channels."""
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
        # The paper multiplies each pair's embedding with the query, and sums weighted embeddings: 2 N^2 Q more. We
        # multiply the query with every entry, widen the attention product, and multiply summed weights with entries.
        paper_macs = macs + 2 * tokens**2 * channels
        macs = macs + 2 * tokens**2 * heads * groups + 2 * tokens * channels * entries
        params = params + acts * 4 * (2 * constants.relative_position + 2) * constants.head_dim
    return Counts(macs, params, paper_macs)


def _mlp(space: Space, gene: str, patch_size: np.ndarray, width: np.ndarray, value: np.ndarray) -> Counts:
    """Return the cost of a block's second half: norm and two linear layers."""
    acts = value > 0
    hidden = hidden_channels(width, gene, value)
    macs = 2 * _tokens(space, patch_size) * width * hidden
    return Counts(macs, 2 * width * hidden + hidden + acts * 3 * width, macs)


def _head(space: Space, width: np.ndarray) -> Counts:
    """Return the cost of the final norm, the classifier (of one vector) and the token head, if any."""
    macs = width * space.classes
    heads = 1 + int(space.constants.token_head)
    return Counts(macs, heads * (macs + space.classes) + 2 * width, macs)
