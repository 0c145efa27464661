"""The vit_res supernet, for ViT-ResNAS (Liao et al., 2021) and ViT-Res."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.vit_res.space import VitResConstants, grids
from raynas.nets.block import Block, BlockShape
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticConv, ElasticLinear, ElasticNorm, PatchStem, new_parameter, select_layers
from raynas.nets.qkv import ElasticQkv
from raynas.nets.sharing import NESTED, Sharing
from raynas.nets.stages import ElasticStage, StagedSupernet, new_blocks
from raynas.nets.units import UnitAxis, UnitGroup
from raynas.space import Arch, Space
from raynas.space.stages import most_blocks


class StemUnit(nn.Module):
    """A 3 x 3 convolution without bias, batch normalisation (torch's defaults, as released) and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, rows, columns]."""
        return F.relu(self.norm(self.conv(x)))


class Stem(nn.Module):
    """Three convolutions, with a residual from the first to the third; not searched."""

    def __init__(self, in_channels: int, channels: int, stride: int):
        super().__init__()
        self.first = StemUnit(in_channels, channels, stride)
        self.second = StemUnit(channels, channels)
        self.third = StemUnit(channels, channels)

    def forward(self, images: Tensor) -> Tensor:
        """Map [batch, channels, height, width] to [batch, stem channels, height / stride, width / stride]."""
        x = self.first(images)
        return x + self.third(self.second(x))


class Reduction(nn.Module):
    """Residual spatial reduction: half the rows and columns, and more channels.

    A norm common to all tokens; then a strided convolution of the patch tokens, with its own positions, and a linear
    layer for the class tokens. The residual adds the tokens, patches pooled two by two, with channels padded by zeros:
    the j-th active channel before is added to the j-th active channel after.

    Args:
        before: rows and columns of the stage before.
    """

    def __init__(self, constants: VitResConstants, inputs: int, width: int, before: tuple[int, int]):
        super().__init__()
        self.before = before
        self.residual = constants.reduction == "residual"
        self.norm = ElasticNorm(inputs, constants.norm_eps)
        self.conv = ElasticConv(inputs, width, side=3, stride=2, padding=1)
        self.linear = ElasticLinear(inputs, width)
        self.position = new_parameter(1, math.prod(before) // 4, width)
        self.class_tokens = constants.class_tokens

    def select(self, inputs: Channels, width: Channels) -> dict[str, Tensor]:
        axes = {"norm": (inputs,), "conv": (inputs, width), "linear": (inputs, width)}
        return {**select_layers(self, axes), "position": width.select(self.position, 2)}

    def forward(self, x: Tensor, inputs: Channels, width: Channels) -> Tensor:
        """Map [batch, class tokens + tokens, inputs] to [batch, class tokens + tokens / 4, width]."""
        beside = self.class_tokens
        normed = self.norm(x, inputs)
        patches = self.conv(self._image(normed), inputs, width).flatten(2).transpose(1, 2)
        patches = patches + width.select(self.position, 2)
        reduced = torch.cat([self.linear(normed[:, :beside], inputs, width), patches], dim=1)
        if self.residual:
            pooled = F.avg_pool2d(self._image(x), 2).flatten(2).transpose(1, 2)
            tokens = torch.cat([x[:, :beside], pooled], dim=1)
            reduced = reduced + F.pad(tokens, (0, width.count - inputs.count))
        return width.mask(reduced)

    def _image(self, x: Tensor) -> Tensor:
        """Return the patch tokens as [batch, inputs, rows, columns]."""
        return x[:, self.class_tokens :].transpose(1, 2).unflatten(2, self.before)


class Stage(ElasticStage[Block]):
    """A reduction, except in the first stage, and blocks."""

    joint = "reduction"

    def __init__(self, space: Space, stage: int, inputs: int, before: tuple[int, int], blocks: int):
        super().__init__()
        constants = space.constants
        self.width = width = int(max(space[f"stages.{stage}.width"].choices))
        self.reduction = Reduction(constants, inputs, width, before) if stage else None
        head_dim = constants.head_dims[stage]

        def new_block(place: str) -> nn.Module:
            """Build a block of its largest choices."""
            heads, hidden = (int(max(space[f"{place}.{leaf}"].choices)) for leaf in ("heads", "mlp_width"))
            qkv = ElasticQkv(width, heads, head_dim, bias="head")
            return Block(width, hidden, qkv, head_dim, constants.attention_scale[stage], constants.norm_eps)

        self.blocks = new_blocks(space, stage, blocks, new_block)


class VitResSupernet(StagedSupernet[Stage]):
    """A ViT-Res of elastic widths, depths (or kept blocks), heads and hidden widths, stage by stage.

    A stage's whole residual stream has the same active channels: the outputs of its reduction (of the patch embedding
    in the first stage), its blocks, and the inputs of the next reduction. The stem has BatchNorm and is not searched:
    it runs once on the whole batch, mixed or not, so that all archs are normalised equally. In training every worker
    normalises by its own images, as in the release.
    """

    def __init__(self, space: Space):
        super().__init__(space)
        constants = space.constants
        self.grids = grids(space)
        self.stem = Stem(space.channels, constants.stem_channels, constants.stem_stride)
        inputs, before, stages = 0, self.grids[0], []
        for index, (grid, blocks) in enumerate(zip(self.grids, most_blocks(space.dimensions), strict=True)):
            stages.append(Stage(space, index, inputs, before, blocks))
            inputs, before = stages[-1].width, grid
        height, width = (side // constants.stem_stride for side in space.input_size)
        patch = constants.patch_size // constants.stem_stride
        beside = constants.class_tokens
        self.embedding = PatchStem(constants.stem_channels, (height, width), patch, stages[0].width, beside)
        self.stages = nn.ModuleList(stages)
        self.add_heads(inputs)
        self.settle()

    # -- shapes ----------------------------------------------------------------------------------------------------

    def block_shape(self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing) -> BlockShape:
        block = self._stages[stage].block(place)
        heads, units, hidden = self._block_values(arch, stage, place)
        query = share(units, block.qkv.heads, block.qkv.unit_kind)
        return BlockShape(width, query, heads, share(hidden, block.fc1.weight.shape[0], "hidden"))

    def block_shape_of_rows(
        self, archs: Sequence[Arch | None], stage: int, place: int, width: Channels, rows: Tensor
    ) -> BlockShape:
        values = [None if arch is None else self._block_values(arch, stage, place) for arch in archs]
        return BlockShape.of_rows(width, values, rows)

    @staticmethod
    def _block_values(arch: Arch, stage: int, place: int) -> tuple[int, int, int]:
        """Return heads, query width (in heads) and hidden channels of a block that runs."""
        block = f"stages.{stage}.blocks.{place}"
        heads = int(arch[f"{block}.heads"])
        return heads, heads, int(arch[f"{block}.mlp_width"])

    # -- the network -----------------------------------------------------------------------------------------------

    def stem_of_all(self, x: Tensor) -> Tensor:
        """Map images to the stem's output [batch, stem channels, height / stride, width / stride]."""
        return self.stem(x)

    def embed(self, x: Tensor, width: Channels) -> Tensor:
        """Map the stem's output to tokens [batch, class tokens + tokens, width], the class tokens first."""
        return self.embedding(x, width)

    def normed(self, x: Tensor, acting: Any, whole: bool = True) -> Tensor:
        """Normalise the last stage's tokens; the class tokens alone if nothing else is read."""
        return super().normed(x if whole else x[:, : self.num_prefix_tokens], acting)

    def pool(self, x: Tensor, acting: Any) -> list[Tensor]:
        """Return the class tokens, after dropout."""
        return [self.drop_features(x[:, place]) for place in range(self.num_prefix_tokens)]

    @property
    def token_grid(self) -> tuple[int, int]:
        return self.grids[-1]

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return the grids of the positions of the patch embedding and every reduction."""
        names = ["embedding.position", *(f"stages.{stage}.reduction.position" for stage in range(1, len(self.stages)))]
        return dict(zip(names, self.grids[: len(names)], strict=True))

    # -- timm's conventions ----------------------------------------------------------------------------------------

    first_conv = "stem.first.conv"
    pooling = "token"

    def stage_grids(self, acting: Any) -> list[tuple[int, tuple[int, int]]]:
        return [(self.space.constants.patch_size * 2**stage, grid) for stage, grid in enumerate(self.grids)]

    def exchangeable(self) -> list[UnitGroup]:
        """Return the units that can be permuted.

        A residual reduction adds the j-th channel before to the j-th after. So a stage's channels are in the stages
        behind it, too, and only the channels that a stage adds are its own.
        """
        groups = super().exchangeable()
        if self.space.constants.reduction == "plain":
            return groups
        reading = [f"stages.{stage}.reduction.norm.weight" for stage in range(1, len(self.stages))]
        streams = [next(g for g in groups if UnitAxis(name, 0) in g.axes) for name in (*reading, "norm.weight")]
        found, start = [group for group in groups if group not in streams], 0
        for stage, group in enumerate(streams):
            axes = tuple(axis._replace(start=start) for behind in streams[stage:] for axis in behind.axes)
            found += [UnitGroup("width", group.count - start, axes)] if group.count > start else []
            start = group.count
        return found

    # -- parts -----------------------------------------------------------------------------------------------------

    def select_embedding(self, width: Channels) -> dict[str, dict[str, Tensor]]:
        """Return the whole stem, which is not searched, and the active part of the patch embedding."""
        return {"stem": self.stem.state_dict(keep_vars=True), "embedding": self.embedding.select(width)}

    def maskable(self, dimension: str) -> bool:
        """Return True if a dimension can be masked within one batch: any dimension, if widths are nested."""
        return self.space.constants.sharing in NESTED

    def tokens(self, archs: Sequence[Arch]) -> float:
        """Return the number of tokens including the class tokens, averaged over the stages."""
        beside = self.space.constants.class_tokens
        return sum(beside + math.prod(grid) for grid in self.grids) / len(self.grids)

    def no_weight_decay(self) -> set[str]:
        """Return the class token's name; the trainer exempts 1-D tensors itself. Positions decay, as released."""
        return {"embedding.class_token"}


SUPERNET = VitResSupernet
