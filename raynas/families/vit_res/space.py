"""The vocabulary of ViT-Res (Liao et al., 2021, ViT-ResNAS): stages joined by residual spatial reductions.

A convolutional stem, which is not searched, and a patch embedding; then stages of pre-norm transformer blocks. Each
stage halves the grid of the one before. The dimensions set the number of stages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.dimension import Choice, Dimension
from raynas.space.rules import MAX_TOKENS, Rule, scaled
from raynas.space.stages import StagedConstants, check_stages, most_blocks, staged_family, with_defaults


class VitResConstants(StagedConstants):
    """Constants of a vit_res space.

    Attributes:
        patch_size: pixels on the side of a first-stage token's patch: the stem's stride times the patch embedding's.
        stem_stride: stride of the first of the stem's three convolutions.
        stem_channels: channels of each of these convolutions.
        head_dims: channels of one attention head in each stage; query width is that times the heads, whatever the
            embedding width.
        attention_scale: for each stage, the factor on the raw scores; by default one over the square root of a head's
            channels.
        reduction: between stages, `residual` adds a pooled copy of the tokens to the strided convolution's output
            (the paper's residual spatial reduction); `plain` is the convolution alone, the paper's baseline.
        norm_eps: epsilon of every LayerNorm.
    """

    patch_size: int = Field(14, ge=1, le=256)
    stem_stride: int = Field(2, ge=1, le=16)
    stem_channels: int = Field(24, ge=1, le=1024)
    head_dims: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = (32, 48, 64)
    attention_scale: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    reduction: Literal["residual", "plain"] = "residual"
    norm_eps: float = Field(1e-6, gt=0)

    @property
    def class_tokens(self) -> int:
        """Number of tokens before the patches: a class token, and a distillation token behind it if there is one."""
        return 1 + int(self.distillation_token)


def grids(space: CodedSpace) -> list[tuple[int, int]]:
    """Return rows and columns of every stage's patch tokens."""
    height, width = space.input_size
    sides = [space.constants.patch_size * 2**stage for stage in range(len(most_blocks(space.dimensions)))]
    return [(height // side, width // side) for side in sides]


def _resolve(constants: VitResConstants, dimensions: tuple[Dimension, ...]) -> VitResConstants:
    scale = constants.attention_scale
    usual = tuple(dim**-0.5 for dim in constants.head_dims)
    constants = constants.model_copy(update={"attention_scale": usual if scale is None else scale})
    return with_defaults(constants, dimensions)


def _check(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    constants, most = space.constants, most_blocks(space.dimensions)
    yield from check_stages(space, ("head_dims", "attention_scale"))
    patch, stride = constants.patch_size, constants.stem_stride
    if patch % stride:
        yield ("constants", "patch_size"), f"{patch} is no multiple of stem_stride {stride}"
    yield from _check_size(space.input_size, patch, len(most))
    widths = [space[f"stages.{stage}.width"].choices for stage in range(len(most))]
    if constants.reduction == "residual":
        for stage, (before, after) in enumerate(pairwise(widths), start=1):
            if min(after) < max(before):
                problem = f"{min(after)} is less than {max(before)}, which the stage before may have"
                yield ("dimensions", "stages", stage, "width"), f"{problem}: a residual only adds channels"


def _check_size(size: tuple[int, int], patch: int, stages: int) -> Iterator[tuple[Location, str]]:
    """Yield faults of the input size; convolution and pooling would halve an odd grid to different sides."""
    multiple = patch * 2 ** (stages - 1)
    if any(side % multiple for side in size):
        why = f"patch_size {patch}" + (f", halved {stages - 1} times" if stages > 1 else "")
        yield ("input", "size"), f"sides must be multiples of {multiple} pixels ({why}), found {size[0]} x {size[1]}"
    if math.prod(side // patch for side in size) > MAX_TOKENS:
        yield ("constants", "patch_size"), f"{patch} makes more than {MAX_TOKENS} tokens"


def _scale(
    constants: VitResConstants, arch: Mapping[str, Choice], factor: float
) -> tuple[VitResConstants, dict[str, Choice]]:
    """Multiply embedding, head and hidden widths by `factor`, rounded to legal values; keep everything else."""
    assert constants.attention_scale is not None  # see `_resolve`
    head_dims = tuple(max(1, round(dim * factor)) for dim in constants.head_dims)
    # A scale other than the default keeps its ratio to the default.
    attention_scale = tuple(
        scale * (before / after) ** 0.5
        for scale, before, after in zip(constants.attention_scale, constants.head_dims, head_dims, strict=True)
    )
    changed = constants.model_copy(update={"head_dims": head_dims, "attention_scale": attention_scale})
    return scaled(changed, arch, factor)


_BLOCK = {"heads": Rule(int, 1, 1024), "mlp_width": Rule(int, 1, 2**17)}

FAMILY = staged_family(_BLOCK, _resolve, constants=VitResConstants, check=_check, scale=_scale)
