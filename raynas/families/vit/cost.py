"""Costs of vit subnets, computed from encoded choices (numpy, no torch).

With E the width, N the tokens, Q = heads x head_dim and M the hidden width, a block executes 3 N E Q (query, key,
value), 2 N^2 Q (scores and weighted sum), N Q E (projection) and 2 N E M (MLP) multiply-accumulates. If the query width
is searched, Q is its choice, and the number of heads does not change the cost.

In class attention with T class tokens, and N tokens with them, queries, projection and MLP are of T tokens alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raynas.families.vit.space import (
    ClassAttention,
    block_genes,
    hidden_channels,
    patch_grid,
    relative_entries,
    relative_groups,
)
from raynas.nets.terms import Counts, Term, counts, head, mlp
from raynas.space import Space
from raynas.space.rules import hidden_width


def slots(space: Space) -> int:
    """Return the largest number of blocks: the largest depth, all blocks that may be kept, or the most in a budget."""
    if space.has("depth"):
        return int(max(space["depth"].choices))
    if space.has("block.heads"):
        _, query, mlp = block_genes(space, 0)  # the cheapest block allows the most
        patches, widths = np.meshgrid(space["patch_size"].choices, space["width"].choices)
        return int(stacked_depth(space, patches, widths, min(space[query].choices), min(space[mlp].choices)).max())
    return sum(dimension.template == "blocks.*.kept" for dimension in space.dimensions)


def stacked_depth(space: Space, patch_size: Any, width: Any, query: Any, mlp: Any) -> Any:
    """Return the number of equal blocks that fit into `depth_macs`, between one and `max_depth`."""
    values = [np.asarray(value) for value in (patch_size, width, query, mlp)]
    patch_size, width, query, mlp = np.broadcast_arrays(*values)
    fixed = _patch_embedding(space, patch_size, width).macs + head(space, width).macs
    if space.constants.class_attention is not None:
        fixed = fixed + _class_attention(space, patch_size, width).macs
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
    if space.constants.class_attention is not None:
        listed.append(Term("class_attention", ("patch_size", "width"), partial(_class_attention, space)))
    return [*listed, Term("head", ("width",), partial(head, space))]


def _stacked(space: Space, index: int, count: Callable[..., Counts], gene: int, *values: np.ndarray) -> Counts:
    """Return the cost of one of the equal blocks, 0 beyond the depth; `gene` is the index of the value for `count`."""
    depth = values[4] if len(values) > 4 else stacked_depth(space, *values)
    block = count(values[0], values[1], values[gene])
    return Counts(*(np.where(depth > index, each, 0) for each in block))


def _tokens(space: Space, patch_size: np.ndarray) -> np.ndarray:
    return math.prod(patch_grid(space.input_size, patch_size)) + space.constants.tokens_in_front


def _patch_embedding(space: Space, patch_size: np.ndarray, width: np.ndarray) -> Counts:
    weights = space.channels * patch_size**2 * width
    return counts(math.prod(patch_grid(space.input_size, patch_size)) * weights, weights + width)


def _positions(space: Space, patch_size: np.ndarray, width: np.ndarray) -> Counts:
    """Return the cost of absolute positions and the class tokens, which is parameters only."""
    return counts(np.zeros_like(width), (_tokens(space, patch_size) + space.constants.class_tokens) * width)


def _attention(space: Space, patch_size: np.ndarray, width: np.ndarray, query: np.ndarray) -> Counts:
    """Return the cost of a block's first half, norm, attention and projections; `query` is in heads or channels."""
    constants = space.constants
    acts = query > 0
    tokens = _tokens(space, patch_size)
    heads, channels = query, query * (constants.head_dim or 1)
    linear = tokens * 4 * width * channels
    macs = paper_macs = linear + 2 * tokens**2 * channels
    biases = (0 if constants.qkv_bias == "none" else 3 * channels) + acts * width
    params = 4 * width * channels + biases + acts * _layer_widths(space) * width
    if constants.relative_position is not None:
        entries = relative_entries(constants.relative_position)
        grid = patch_grid(space.input_size, patch_size)
        groups = relative_groups(*grid, constants.tokens_in_front, constants.head_dim)
        # The paper multiplies each pair's embedding with the query, and sums weighted embeddings: 2 N^2 Q more. We
        # multiply the query with every entry, widen the attention product, and multiply summed weights with entries.
        paper_macs = macs + 2 * tokens**2 * channels
        macs = macs + 2 * tokens**2 * heads * groups + 2 * tokens * channels * entries
        params = params + acts * 4 * (2 * constants.relative_position + 2) * constants.head_dim
    return Counts(macs, params, paper_macs)


def _mlp(space: Space, gene: str, patch_size: np.ndarray, width: np.ndarray, value: np.ndarray) -> Counts:
    """Return the cost of a block's second half; `gene` names the dimension of `value`."""
    hidden = hidden_channels(width, gene, value)
    without = mlp(_tokens(space, patch_size), width, hidden)
    return counts(without.macs, without.params + (hidden > 0) * (_layer_widths(space) - 2) * width)


def _layer_widths(space: Space) -> int:
    """Return the parameters of a branch for each channel of the width: those of its norm, and its layer scale."""
    return 2 + int(space.constants.layer_scale is not None)


def _class_attention(space: Space, patch_size: np.ndarray, width: np.ndarray) -> Counts:
    """Return the cost of all class-attention blocks."""
    constants, shape = space.constants, space.constants.class_attention
    assert isinstance(shape, ClassAttention)
    beside = constants.class_tokens
    tokens = math.prod(patch_grid(space.input_size, patch_size)) + beside
    channels, hidden = shape.heads * shape.head_dim, hidden_width(width, shape.mlp_ratio)
    projection = width * channels
    macs = 2 * (beside + tokens) * projection + 2 * beside * tokens * channels + 2 * beside * width * hidden
    biases = (0 if constants.qkv_bias == "none" else 3 * channels) + hidden + 2 * width
    params = 4 * projection + 2 * width * hidden + biases + 2 * _layer_widths(space) * width
    return counts(shape.blocks * macs, shape.blocks * params)
