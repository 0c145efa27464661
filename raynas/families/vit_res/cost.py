"""Costs of vit_res subnets, computed from encoded choices (numpy, no torch).

With C the width of a stage, N its patch tokens, T = N + 1 with the class token, A = heads x head_dim of a block and M
its hidden width, attention executes 4 T C A + 2 T^2 A multiply-accumulates and the MLP 2 T C M. A reduction from B to C
channels takes 9 N B C for the patches and B C for the class token. As in the paper, the token head, which runs only in
training, has parameters but no multiply-accumulates.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from raynas.families.vit_res.space import grids
from raynas.nets.terms import Counts, Term, counts, head, mlp
from raynas.space import Space
from raynas.space.stages import most_blocks

KERNEL = 9
"""Entries of the 3 x 3 kernels of the stem and the reductions."""


def terms(space: Space) -> list[Term]:
    """Return the terms of a vit_res space, which add up to the cost of a subnet."""
    first = "stages.0.width"
    listed = [Term("stem", (first,), partial(_stem, space)), Term("embedding", (first,), partial(_embedding, space))]
    beside = space.constants.class_tokens
    shapes = zip(grids(space), most_blocks(space.dimensions), space.constants.head_dims, strict=True)
    for stage, (grid, blocks, head_dim) in enumerate(shapes):
        here, patches = f"stages.{stage}", math.prod(grid)
        width = f"{here}.width"
        if stage:
            before = f"stages.{stage - 1}.width"
            listed.append(Term(f"{here}.reduction", (before, width), partial(_reduction, beside, patches)))
        for block in (f"{here}.blocks.{i}" for i in range(blocks)):
            if space.has(f"{block}.heads"):  # else never kept
                attention = partial(_attention, patches + beside, head_dim)
                listed.append(Term(f"{block}.attention", (width, f"{block}.heads"), attention))
                listed.append(Term(f"{block}.mlp", (width, f"{block}.mlp_width"), partial(mlp, patches + beside)))
    return [*listed, Term("head", (width,), partial(head, space))]


def _stem(space: Space, width: np.ndarray) -> Counts:
    """Return the cost of three convolutions without biases and their batch norms, independent of the width."""
    constants = space.constants
    weights = KERNEL * constants.stem_channels * (space.channels + 2 * constants.stem_channels)
    places = math.prod(side // constants.stem_stride for side in space.input_size)
    return counts(np.full_like(width, places * weights), np.full_like(width, weights + 6 * constants.stem_channels))


def _embedding(space: Space, width: np.ndarray) -> Counts:
    """Return the cost of the patch embedding, the class tokens and the first stage's positions."""
    constants, patches = space.constants, math.prod(grids(space)[0])
    weights = constants.stem_channels * (constants.patch_size // constants.stem_stride) ** 2 * width
    return counts(patches * weights, weights + (1 + 2 * constants.class_tokens + patches) * width)


def _reduction(beside: int, patches: int, before: np.ndarray, width: np.ndarray) -> Counts:
    """Return the cost of a reduction: norm, convolution, positions, class tokens' linear layer; pooling is free."""
    weights = before * width
    return counts((KERNEL * patches + beside) * weights, (KERNEL + 1) * weights + (2 + patches) * width + 2 * before)


def _attention(tokens: int, head_dim: int, width: np.ndarray, heads: np.ndarray) -> Counts:
    """Return the cost of a block's first half: norm, query, key, value, attention, projection."""
    query = heads * head_dim
    linear = 4 * width * query
    return counts(tokens * linear + 2 * tokens**2 * query, linear + 3 * query + (heads > 0) * 3 * width)
