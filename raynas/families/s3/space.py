"""The vocabulary of S3 (Chen et al., 2021, Searching the Search Space): Swin-like networks with searched widths.

Every stage but the first begins by merging 2 x 2 tokens into one. A block has attention inside windows, shifted in
every other block, then an MLP. The dimensions set the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from raynas.config import added_field
from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.definition import Pixels
from raynas.space.dimension import Choice
from raynas.space.rules import MAX_TOKENS, Rule, check_blocks, check_no_distillation_token
from raynas.space.stages import StagedConstants, check_stages, most_blocks, running, staged_family

MERGED = 4
"""Number of tokens merged into one: two by two."""


class S3Constants(StagedConstants):
    """Constants of an s3 space.

    Attributes:
        patch_size: pixels on the side of a first-stage token's patch.
        head_dim: channels of one attention head; query width is `head_dim * heads`, whatever the embedding width. None
            if the query width is searched (dimension `query_width`) and divided among the chosen heads.
        attention_scale: factor on the raw scores; by default one over the square root of a head's channels.
        norm_eps: epsilon of every LayerNorm.
        shifts: blocks with shifted windows: every second one of those that `run` in a stage, or of all `places`, so
            that leaving a block out does not change the windows of those behind it.
        windows_for: height and width of the images that windows are given for: they scale with images of another size
            (7 tokens for 224 pixels are 12 for 384). None: they are as many tokens for any images.
    """

    patch_size: int = Field(4, ge=1, le=256)
    head_dim: int | None = Field(32, ge=1, le=1024)
    attention_scale: float | None = Field(None, gt=0)
    norm_eps: float = Field(1e-5, gt=0)
    shifts: Literal["run", "places"] = added_field("run")
    windows_for: tuple[Pixels, Pixels] | None = added_field(None)


def grids(space: CodedSpace) -> list[tuple[int, int]]:
    """Return rows and columns of every stage's tokens; partial patches and merged squares at the border count."""
    sides = [space.constants.patch_size * 2**stage for stage in range(len(most_blocks(space.dimensions)))]
    return [_grid(space.input_size, side) for side in sides]


def _grid(size: tuple[int, int], side: int) -> tuple[int, int]:
    return -(-size[0] // side), -(-size[1] // side)


def window_sides(space: CodedSpace, window: Any) -> tuple[Any, Any]:
    """Return rows and columns of windows, before grids clip them.

    Args:
        window: a value of a dimension `window`, a number or array.
    """
    constants = space.constants
    if constants.windows_for is None:
        return window, window
    here, there = (_grid(size, constants.patch_size) for size in (space.input_size, constants.windows_for))
    rows, columns = (np.maximum(1, window * now // before) for now, before in zip(here, there, strict=True))
    return rows, columns


def fitted(window: Any, side: int) -> Any:
    """Clip a window's side, a number or array, to the grid's side."""
    return np.clip(window, 1, side)


def shifted(space: CodedSpace, arch: Mapping[str, Choice], stage: int, place: int) -> bool:
    """Return True if a block of an arch has shifted windows."""
    order = place if space.constants.shifts == "places" else running(arch, stage).index(place)
    return order % 2 == 1


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    yield from check_stages(space)
    yield from check_no_distillation_token(space)
    patch, (height, width) = space.constants.patch_size, space.input_size
    if patch > max(height, width):
        yield ("constants", "patch_size"), f"{patch} is larger than the {height} x {width} image"
    if math.prod(grids(space)[0]) > MAX_TOKENS:
        yield ("constants", "patch_size"), f"{patch} makes more than {MAX_TOKENS} tokens"
    yield from check_blocks(space)


def _acting(space: CodedSpace, arch: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return the arch's values with windows clipped to their grid, since larger ones give the same network.

    If shifts go by places, whether a block's windows are shifted is a value of its own.
    """
    sides = [max(grid) for grid in grids(space)]
    values = dict(arch)
    for name, value in arch.items():
        if name.endswith(".window"):
            _, stage, _, place, _ = name.split(".")
            values[name] = min(int(max(window_sides(space, value))), sides[int(stage)])
            if space.constants.shifts == "places":
                values[name.replace("window", "shifted")] = shifted(space, arch, int(stage), int(place))
    return values


_BLOCK = {
    "window": Rule(int, 1, 1024),
    "heads": Rule(int, 1, 1024),
    "query_width": Rule(int, 1, 2**15),
    "mlp_ratio": Rule(float, 0, 64),
}

FAMILY = staged_family(_BLOCK, constants=S3Constants, check=_check, acting=_acting)
