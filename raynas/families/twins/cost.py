"""Costs of twins subnets, computed from encoded choices (numpy, no torch).

With C the width, N the tokens, Q the query width and M the hidden width of a stage's block, the MLP executes 2 N C M
multiply-accumulates. Local attention in windows of W tokens, with N' tokens including padding, takes 3 N' C Q (query,
key, value), 2 N' W Q (scores and weighted sum) and N Q C (projection). Global attention to K squares of r x r tokens
takes K r^2 C^2 (sub-sampling), N C Q + 2 K C Q, 2 N K Q, and N Q C.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from raynas.families.twins.space import grids, query_gene
from raynas.nets.terms import Counts, Term, counts, head, mlp
from raynas.space import Space
from raynas.space.stages import most_blocks

PEG = 9
"""Entries of a positional-encoding generator's 3 x 3 kernel."""


def terms(space: Space) -> list[Term]:
    """Return the terms of a twins space, which add up to the cost of a subnet."""
    listed: list[Term] = []
    before: tuple[str, ...] = ()
    grid_of = grids(space)
    for stage, blocks in enumerate(most_blocks(space.dimensions)):
        grid, here, width = grid_of[stage], f"stages.{stage}", f"stages.{stage}.width"
        patch = space.constants.patch_sizes[stage]
        embedding = partial(_embedding, math.prod(grid), patch**2 * (1 if before else space.channels))
        listed += [
            Term(f"{here}.embedding", (*before, width), embedding),
            Term(f"{here}.position", (width,), partial(_position, math.prod(grid))),
        ]
        for block in (f"{here}.blocks.{i}" for i in range(blocks)):
            if not space.has(f"{block}.heads"):  # never kept
                continue
            attended = (width, f"{block}.global_attention", f"{block}.{query_gene(space.constants)}")
            reduction = space.constants.reductions[stage]
            attention = partial(_attention, grid, space.constants.window, reduction, space.constants.head_dim or 1)
            listed += [
                Term(f"{block}.attention", attended, attention),
                Term(f"{block}.mlp", (width, f"{block}.mlp_width"), partial(mlp, math.prod(grid))),
            ]
        before = (width,)
    return [*listed, Term("head", before, partial(head, space))]


def _embedding(tokens: int, inputs: int, *widths: np.ndarray) -> Counts:
    """Return the cost of a patch embedding and its norm; `inputs` of a patch for each channel of the stage before."""
    weights = inputs * np.prod(widths, axis=0)
    return counts(tokens * weights, weights + 3 * widths[-1])


def _position(tokens: int, width: np.ndarray) -> Counts:
    """Return the cost of a positional-encoding generator."""
    return counts(tokens * PEG * width, (PEG + 1) * width)


def _attention(
    grid: tuple[int, int],
    window: int,
    reduction: int,
    unit: int,
    width: np.ndarray,
    is_global: np.ndarray,
    units: np.ndarray,
) -> Counts:
    """Return the cost of a block's first half: norm, and attention of either kind; a unit has `unit` channels."""
    query = units * unit
    tokens, acts, linear = math.prod(grid), query > 0, width * query
    padded = math.prod(-(-side // window) * window for side in grid)
    keys = math.prod(-(-side // reduction) for side in grid)
    local_macs = (3 * padded + tokens) * linear + 2 * padded * window**2 * query
    global_macs = (2 * tokens + 2 * keys) * linear + 2 * tokens * keys * query
    params = 4 * linear + 3 * query + acts * 3 * width
    reducing = np.zeros_like(width)
    if reduction > 1:
        weights = acts * reduction**2 * width**2
        global_macs = global_macs + keys * weights
        reducing = weights + acts * 3 * width
    chosen = is_global.astype(bool)
    return counts(np.where(chosen, global_macs, local_macs), params + chosen * reducing)
