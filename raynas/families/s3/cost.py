"""Costs of s3 subnets, computed from encoded choices (numpy, no torch).

With C the width of a stage, N its tokens, Q the query width and M the hidden width of a block, attention takes 4 N C Q
multiply-accumulates for its projections and 2 N' W Q for scores and weighted sums in windows of W tokens. N' includes
padding if windows do not divide the grid (padding is never projected). The MLP takes 2 N C M. Merging B channels into C
takes 4 N B C.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from raynas.families.s3.space import MERGED, fitted, grids, window_sides
from raynas.nets.terms import Counts, Term, counts, head, mlp
from raynas.space import Space
from raynas.space.rules import hidden_width
from raynas.space.stages import most_blocks


def terms(space: Space) -> list[Term]:
    """Return the terms of an s3 space, which add up to the cost of a subnet."""
    listed = [Term("embedding", ("stages.0.width",), partial(_embedding, space))]
    for stage, (grid, blocks) in enumerate(zip(grids(space), most_blocks(space.dimensions), strict=True)):
        here, tokens = f"stages.{stage}", math.prod(grid)
        width = f"{here}.width"
        if stage:
            listed.append(Term(f"{here}.merging", (f"stages.{stage - 1}.width", width), partial(_merging, tokens)))
        for block in (f"{here}.blocks.{i}" for i in range(blocks)):
            if not space.has(f"{block}.heads"):  # never kept
                continue
            query = (f"{block}.query_width",) if space.constants.head_dim is None else ()
            attended = (width, f"{block}.window", f"{block}.heads", *query)
            listed.append(Term(f"{block}.attention", attended, partial(_attention, space, grid)))
            listed.append(Term(f"{block}.mlp", (width, f"{block}.mlp_ratio"), partial(_mlp, tokens)))
    return [*listed, Term("head", (width,), partial(head, space))]


def _embedding(space: Space, width: np.ndarray) -> Counts:
    """Return the cost of the patch embedding and its norm."""
    weights = space.channels * space.constants.patch_size**2 * width
    return counts(math.prod(grids(space)[0]) * weights, weights + 3 * width)


def _merging(tokens: int, before: np.ndarray, width: np.ndarray) -> Counts:
    """Return the cost of a merging: the norm of four tokens' channels, and a linear layer without biases."""
    weights = MERGED * before * width
    return counts(tokens * weights, weights + 2 * MERGED * before)


def _attention(
    space: Space,
    grid: tuple[int, int],
    width: np.ndarray,
    window: np.ndarray,
    heads: np.ndarray,
    *query_width: np.ndarray,
) -> Counts:
    """Return the cost of a block's first half: norm, query, key, value, attention with biases, projection."""
    head_dim = space.constants.head_dim
    query = query_width[0] if head_dim is None else heads * head_dim
    sides = [fitted(window, side) for window, side in zip(window_sides(space, window), grid, strict=True)]
    padded = np.prod([-(-length // side) * side for length, side in zip(grid, sides, strict=True)], axis=0)
    linear = 4 * width * query
    table = heads * np.prod([2 * side - 1 for side in sides], axis=0)
    macs = math.prod(grid) * linear + 2 * padded * np.prod(sides, axis=0) * query
    return counts(macs, linear + 3 * query + table + (heads > 0) * 3 * width)


def _mlp(tokens: int, width: np.ndarray, ratio: np.ndarray) -> Counts:
    return mlp(tokens, width, hidden_width(width, ratio))
