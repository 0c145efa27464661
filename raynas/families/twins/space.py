"""The vocabulary of Twins-SVT (Chu et al., 2021): ViTAS's Twins-shaped spaces.

Each stage has a coarser grid of tokens: a patch embedding, then blocks. A block has attention inside windows (local) or
to a sub-sampled grid (global), then an MLP. The dimensions set the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from raynas.config import added_field
from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.rules import MAX_TOKENS, Rule, check_blocks, check_no_distillation_token
from raynas.space.stages import StagedConstants, check_stages, staged_family

Tokens = Annotated[int, Field(ge=1, le=256)]
"""Side of a patch, a window or a sub-sampled square."""


class TwinsConstants(StagedConstants):
    """Constants of a twins space.

    Attributes:
        patch_sizes: side of each stage's patches, in pixels for the first stage, else in tokens of the stage before.
        window: side of local attention's windows, in tokens. A grid that it does not divide is padded with zeros,
            which queries attend to as to other tokens (as in the release).
        reductions: for each stage, the side of the square of tokens that global attention reads as one; 1 reads all.
        head_dim: channels of one attention head; query width is `head_dim * heads`, whatever the embedding width. None
            if the query width is searched (dimension `query_width`) and divided among the chosen heads.
        attention_scale: factor on the raw scores; by default one over the square root of a head's channels.
        private_heads: query, key and value projections with separate parameters for each head count.
        norm_eps: epsilon of the blocks' norms and of the final norm.
        embedding_norm_eps: epsilon of the norms after patch embeddings and after sub-sampling.
    """

    patch_sizes: tuple[Tokens, ...] = (4, 2, 2, 2)
    window: Tokens = 7
    reductions: tuple[Tokens, ...] = (8, 4, 2, 1)
    head_dim: int | None = added_field(None, ge=1, le=1024)
    attention_scale: float | None = Field(None, gt=0)
    private_heads: Literal["none", "qk", "v", "qkv"] = "none"
    norm_eps: float = Field(1e-6, gt=0)
    embedding_norm_eps: float = Field(1e-5, gt=0)


def grids(space: CodedSpace) -> list[tuple[int, int]]:
    """Return rows and columns of every stage's tokens; partial patches count."""
    size, found = space.input_size, []
    for patch in space.constants.patch_sizes:
        size = -(-size[0] // patch), -(-size[1] // patch)
        found.append(size)
    return found


def query_gene(constants: TwinsConstants) -> str:
    """Return the dimension of a block's query axis: the heads if they determine it."""
    return "query_width" if constants.head_dim is None else "heads"


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    yield from check_stages(space, ("patch_sizes", "reductions"))
    yield from check_no_distillation_token(space)
    before, what = space.input_size, "image"
    for stage, (patch, grid) in enumerate(zip(space.constants.patch_sizes, grids(space), strict=True)):
        if patch > max(before):
            yield ("constants", "patch_sizes", stage), f"{patch} is larger than the {before[0]} x {before[1]} {what}"
        if math.prod(grid) > MAX_TOKENS:
            yield ("constants", "patch_sizes", stage), f"{patch} makes more than {MAX_TOKENS} tokens"
        before, what = grid, "grid of the stage before"
    yield from check_blocks(space)


_BLOCK = {
    "global_attention": Rule(bool, 0, 1),
    "heads": Rule(int, 1, 1024),
    "query_width": Rule(int, 1, 2**15),
    "mlp_width": Rule(int, 1, 2**17),
}

FAMILY = staged_family(_BLOCK, constants=TwinsConstants, check=_check)
