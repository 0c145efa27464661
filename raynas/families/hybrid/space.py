"""The vocabulary of hybrids of convolution and attention (Gong et al., 2022, NASViT; Wang et al., 2021, AlphaNet).

A convolutional stem, then stages. Each stage is convolutional (inverted residuals) or a transformer (one inverted
residual, which changes grid and width, then blocks). All layers of a stage share its choices. The dimensions set the
number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.dimension import Choice, Dimension
from raynas.space.rules import Family, Rule, check_no_distillation_token
from raynas.space.stages import StagedConstants, check_stages, with_defaults

MAX_TOKENS = 2**14
"""The most tokens in one attention window."""

Kind = Literal["conv", "transformer"]
Stride = Literal[1, 2]
Grid = tuple[Any, Any]
"""Rows and columns: two numbers, or two arrays [n]."""


class HybridConstants(StagedConstants):
    """Constants of a hybrid space.

    Attributes:
        kinds: each stage's kind, `conv` or `transformer`.
        strides: stride of each stage's first layer; a grid of odd side is halved to the larger half.
        squeeze: for each stage, True if its inverted residuals have squeeze-and-excitation.
        stem_stride: stride of the stem's convolution.
        divisor: hidden widths of inverted residuals and of their squeezes are rounded to multiples of it.
        expands: for each stage, True if its inverted residuals begin with an expanding convolution; by default True if
            an expansion is above 1. Without it, hidden channels equal input channels.
        head_dim: query and key channels of one head; a transformer stage has as many heads as its width holds.
        value_ratio: value channels for each channel of the width.
        mlp_conv: True for a 3 x 3 depthwise convolution of an MLP's hidden channels before the activation (as the
            paper describes "the MLP"; the released code has none).
        attention_scale: factor on the raw scores; by default one over the square root of `head_dim`.
        norm: axes of a block's layer norms: `image`, all tokens and channels of an image together (as released), or
            `token`, each token's channels (as usual, and as in the paper).
        norm_eps: epsilon of the layer norms.
        scaling: row of the table of factors that multiplies a block's branches. `depth_tokens`: the row of the stage's
            depth and the number of tokens modulo 8, times 8 / width (as released). `width`: the row of the stage's
            width (the paper's key: width and layer). `none`: no scaling.
        head_expansion: channels before the pooling, for each channel of the last stage.
    """

    kinds: tuple[Kind, ...]
    strides: tuple[Stride, ...]
    squeeze: tuple[bool, ...]
    stem_stride: Stride = 2
    divisor: int = Field(8, ge=1, le=256)
    expands: tuple[bool, ...] | None = None
    head_dim: int = Field(8, ge=1, le=1024)
    value_ratio: int = Field(4, ge=1, le=64)
    mlp_conv: bool = False
    attention_scale: float | None = Field(None, gt=0)
    norm: Literal["image", "token"] = "image"
    norm_eps: float = Field(1e-5, gt=0)
    scaling: Literal["depth_tokens", "width", "none"] = "depth_tokens"
    head_expansion: int = Field(6, ge=1, le=64)


# -- shapes: the same for numbers and for arrays [n], so that networks and costs cannot differ -------------------------


def image_sides(size: tuple[int, int], resolution: Any) -> Grid:
    """Return the height and width of resized images: the shorter side becomes the resolution."""
    least = min(size)
    return (2 * size[0] * resolution + least) // (2 * least), (2 * size[1] * resolution + least) // (2 * least)


def halved(grid: Grid, stride: int) -> Grid:
    """Return the grid after a convolution of that stride."""
    return -(-grid[0] // stride), -(-grid[1] // stride)


def grids(space: CodedSpace, resolution: Any) -> list[Grid]:
    """Return the grids after the stem and after each stage.

    Args:
        resolution: the arch's resolution; in a space without that dimension, the images' shorter side.
    """
    found = [halved(image_sides(space.input_size, resolution), space.constants.stem_stride)]
    for stride in space.constants.strides:
        found.append(halved(found[-1], stride))
    return found


def rounded(channels: Any, divisor: int) -> Any:
    """Round channels to the nearest multiple of the divisor, or one higher if that would lose more than a tenth."""
    near = np.maximum((2 * channels + divisor) // (2 * divisor) * divisor, divisor)
    return near + divisor * (10 * near < 9 * channels)


def hidden_width(constants: HybridConstants, stage: int, inputs: Any, expansion: Any) -> Any:
    """Return the hidden channels of an inverted residual."""
    assert constants.expands is not None
    return rounded(inputs * expansion, constants.divisor) if constants.expands[stage] else inputs


def squeezed_width(constants: HybridConstants, hidden: Any) -> Any:
    """Return the hidden channels of squeeze-and-excitation."""
    return rounded(hidden // 4, constants.divisor)


def mlp_width(width: Any, ratio: Any) -> Any:
    """Return the hidden channels of a block's MLPs."""
    return np.floor(np.multiply(width, ratio)).astype(np.int64)


def window_grid(grid: Grid, windows: Any) -> Grid:
    """Return rows and columns of one window; a grid's windows form a square (4 windows are 2 x 2)."""
    side = np.sqrt(windows).astype(np.int64)
    return grid[0] // side, grid[1] // side


def resolutions(space: CodedSpace) -> tuple[int, ...]:
    """Return the resolutions of a space: the shorter sides of its resized images."""
    return space["resolution"].choices if space.has("resolution") else (min(space.input_size),)


# -- the family --------------------------------------------------------------------------------------------------------


def _required(constants: HybridConstants, given: set[str]) -> list[str]:
    names = ["resolution"] if "resolution" in given else []
    names += ["stem.width", *(f"stages.*.{leaf}" for leaf in ("width", "depth", "kernel", "expansion")), "head.width"]
    transformers = [stage for stage, kind in enumerate(constants.kinds) if kind == "transformer"]
    return [*names, *(f"stages.{stage}.{leaf}" for stage in transformers for leaf in ("mlp_ratio", "windows"))]


def _resolve(constants: HybridConstants, dimensions: tuple[Dimension, ...]) -> HybridConstants:
    expands = constants.expands
    if expands is None:  # set from all choices, so that a subnet at expansion 1 keeps the convolution
        expands = tuple(max(d.choices) > 1 for d in dimensions if d.name.endswith(".expansion"))
    return with_defaults(constants.model_copy(update={"expands": expands}), dimensions)


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    constants, wrong = space.constants, next(check_stages(space, ("kinds", "strides", "squeeze", "expands")), None)
    if wrong is not None:  # the checks below need one value for each stage
        yield wrong
        return
    yield from check_no_distillation_token(space)
    if constants.token_head:
        yield ("constants", "token_head"), "a hybrid pools its tokens before it classifies: there is none"
    for stage, kind in enumerate(constants.kinds):
        place, here = ("dimensions", "stages", stage), f"stages.{stage}"
        if any(kernel % 2 == 0 for kernel in space[f"{here}.kernel"].choices):
            yield (*place, "kernel"), "sides of kernels must be odd, so that smaller ones lie in the middle"
        expansions = space[f"{here}.expansion"].choices
        if not constants.expands[stage] and max(expansions) > 1:
            yield ("constants", "expands", stage), "without an expanding convolution the expansion must be 1"
            return
        for inputs in space[f"stages.{stage - 1}.width" if stage else "stem.width"].choices:
            hidden = [int(hidden_width(constants, stage, inputs, expansion)) for expansion in expansions]
            if len(set(hidden)) < len(hidden):
                same = f"some of {list(expansions)} give {inputs} channels as many hidden ones, {hidden}"
                yield (*place, "expansion"), f"{same}, rounded to multiples of constants.divisor {constants.divisor}"
        if kind == "transformer":
            for leaf, problem in _check_transformer(space, stage):
                yield (*place, leaf), problem


def _check_transformer(space: CodedSpace, stage: int) -> Iterator[tuple[str, str]]:
    here, dim = f"stages.{stage}", space.constants.head_dim
    widths, depths, ratios, windows = (
        space[f"{here}.{leaf}"].choices for leaf in ("width", "depth", "mlp_ratio", "windows")
    )
    for width in widths:
        if width % dim:
            yield "width", f"{width} is no whole number of heads of {dim} channels"
    if min(depths) < 2 and (len(ratios) > 1 or len(windows) > 1):
        yield (
            "depth",
            "at depth 1 there is no block, and mlp_ratio and windows do not act: depths from 2, or one of each",
        )
    if min(widths) * min(ratios) < 1:
        yield "mlp_ratio", "the smallest width times the smallest mlp_ratio leaves no hidden channel"
    for count in windows:
        if math.isqrt(count) ** 2 != count:
            yield "windows", f"{count} windows do not lie in a square: 1, 4, 9, .."
            return
    for resolution in resolutions(space):
        grid, (height, width) = grids(space, resolution)[stage + 1], image_sides(space.input_size, resolution)
        for count in windows:
            if any(side % math.isqrt(count) for side in grid):
                where = f"{grid[0]} x {grid[1]} grid of {height} x {width} pixels"
                yield "windows", f"{count} windows do not divide the {where}"
            elif grid[0] * grid[1] // count > MAX_TOKENS:
                yield "windows", f"{count} at {resolution} pixels make more than {MAX_TOKENS} tokens a window"


def _scale(
    constants: HybridConstants, arch: Mapping[str, Choice], factor: float
) -> tuple[HybridConstants, dict[str, Choice]]:
    """Multiply widths by `factor`, rounded to legal values; keep everything else, including the resolution."""
    values = dict(arch)
    for name, value in arch.items():
        part, _, leaf = name.rpartition(".")
        if leaf == "width":
            transformer = part.startswith("stages.") and constants.kinds[int(part.split(".")[1])] == "transformer"
            unit = constants.head_dim if transformer else 1
            values[name] = unit * max(1, round(value * factor / unit))
    return constants, values


_WIDTH = Rule(int, 1, 2**15)

FAMILY = Family(
    constants=HybridConstants,
    dimensions={
        "resolution": Rule(int, 1, 2**13),
        "stem.width": _WIDTH,
        "stages.*.width": _WIDTH,
        "stages.*.depth": Rule(int, 1, 256),
        "stages.*.kernel": Rule(int, 1, 31),
        "stages.*.expansion": Rule(int, 1, 16),
        "stages.*.mlp_ratio": Rule(float, 0, 64),
        "stages.*.windows": Rule(int, 1, 1024, descending=True),
        "head.width": _WIDTH,
    },
    resolve=_resolve,
    check=_check,
    scale=_scale,
    required=_required,
)
