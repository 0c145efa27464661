"""The vocabulary of Twins-SVT (Chu et al., 2021): ViTAS's Twins-shaped spaces.

Stages follow one another, each on a coarser grid of tokens: a patch embedding, then blocks, each with attention inside
windows (local) or to a sub-sampled grid (global), then an MLP. How many stages there are, the dimensions say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from raynas.config import Location
from raynas.space.families.rules import CommonConstants, Family, Rule
from raynas.space.families.stages import depth_or_kept, most_blocks

if TYPE_CHECKING:
    from raynas.space.arch import Arch
    from raynas.space.dimension import Dimension
    from raynas.space.space import Space

MAX_TOKENS = 2**16
Tokens = Annotated[int, Field(ge=1, le=256)]
"""Side of a patch, a window or a sub-sampled square."""


class TwinsConstants(CommonConstants):
    """What is fixed in a twins space.

    Attributes:
        patch_sizes: side of each stage's patches, in pixels for the first stage, else in tokens of the stage before.
        window: side of local attention's windows, in tokens. A grid that it does not divide is padded with zeros,
            which queries attend to as to other tokens (as in the release).
        reductions: for each stage, the side of the square of tokens that global attention reads as one; 1 reads all.
        attention_scale: factor on the raw scores; by default one over the square root of a head's channels.
        private_heads: which of the query, key and value projections each head count has parameters of its own for.
        norm_eps: epsilon of the blocks' norms and of the last one.
        embedding_norm_eps: epsilon of the norms behind patch embeddings and behind sub-sampling.
        drop_path_depths: for each stage the number of blocks that the drop-path rate, which rises linearly from 0 over
            all stages, counts; by default the most blocks. A shallower stage leaves out steps of the ramp.
    """

    patch_sizes: tuple[Tokens, ...] = (4, 2, 2, 2)
    window: Tokens = 7
    reductions: tuple[Tokens, ...] = (8, 4, 2, 1)
    attention_scale: float | None = Field(None, gt=0)
    private_heads: Literal["none", "qk", "v", "qkv"] = "none"
    norm_eps: float = Field(1e-6, gt=0)
    embedding_norm_eps: float = Field(1e-5, gt=0)
    drop_path_depths: tuple[Annotated[int, Field(ge=0, le=256)], ...] | None = None


def grids(size: tuple[int, int], patch_sizes: Iterable[int]) -> list[tuple[int, int]]:
    """Rows and columns of every stage's tokens, for images of (height, width) pixels; overhanging patches count."""
    found = []
    for patch in patch_sizes:
        size = -(-size[0] // patch), -(-size[1] // patch)
        found.append(size)
    return found


def _required(constants: TwinsConstants, given: set[str]) -> list[str]:
    del constants
    return ["stages.*.width", depth_or_kept(given), *(f"stages.*.blocks.*.{leaf}" for leaf in _BLOCK)]


def _resolve(constants: TwinsConstants, dimensions: tuple[Dimension, ...]) -> TwinsConstants:
    depths = constants.drop_path_depths
    return constants.model_copy(update={"drop_path_depths": most_blocks(dimensions) if depths is None else depths})


def _check(space: Space) -> Iterator[tuple[Location, str]]:
    constants, most = space.constants, most_blocks(space.dimensions)
    for name in ("patch_sizes", "reductions", "drop_path_depths"):
        if len(getattr(constants, name)) != len(most):
            yield ("constants", name), f"needs one number for each of the {len(most)} stages"
            return
    for stage, (blocks, ramp) in enumerate(zip(most, constants.drop_path_depths, strict=True)):
        if blocks > ramp:
            yield ("constants", "drop_path_depths"), f"counts {ramp} blocks in stage {stage}, which has up to {blocks}"
    size, what = space.input_size, "image"
    for stage, patch in enumerate(constants.patch_sizes):
        height, width = size
        if patch > max(size):
            yield ("constants", "patch_sizes", stage), f"{patch} is larger than the {height} x {width} {what}"
        size, what = grids(size, [patch])[0], "grid of the stage before"
        if size[0] * size[1] > MAX_TOKENS:
            yield ("constants", "patch_sizes", stage), f"{patch} makes more than {MAX_TOKENS} tokens"
    for dimension in space.dimensions:
        block, _, leaf = dimension.name.rpartition(".")
        if leaf == "query_width":
            for query, heads in product(dimension.choices, space[f"{block}.heads"].choices):
                if query % heads:
                    place = ("dimensions", "stages", int(block.split(".")[1]), "blocks")
                    yield place, f"query_width {query} cannot be cut into {heads} heads"


def _scale(arch: Arch, factor: float) -> Arch:
    """Embedding, query and hidden widths grow by `factor`, each to the nearest that exists; all else stays."""
    values: dict[str, Any] = dict(arch)
    for name, value in arch.items():
        block, _, leaf = name.rpartition(".")
        if leaf in ("width", "mlp_width"):
            values[name] = max(1, round(value * factor))
        elif leaf == "query_width":
            heads = arch[f"{block}.heads"]
            values[name] = heads * max(1, round(value * factor / heads))
    return arch.space.off_grid(values)


_BLOCK = {
    "global_attention": Rule(bool, 0, 1),
    "heads": Rule(int, 1, 1024),
    "query_width": Rule(int, 1, 2**15),
    "mlp_width": Rule(int, 1, 2**17),
}

TWINS = Family(
    constants=TwinsConstants,
    dimensions={
        "stages.*.width": Rule(int, 1, 2**15),
        "stages.*.depth": Rule(int, 0, 256),
        "stages.*.blocks.*.kept": Rule(bool, 0, 1),
        **{f"stages.*.blocks.*.{leaf}": rule for leaf, rule in _BLOCK.items()},
    },
    resolve=_resolve,
    check=_check,
    scale=_scale,
    required=_required,
)
