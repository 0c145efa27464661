"""The s3 supernet: Swin transformers of elastic shape (Liu et al., 2021; Chen et al., 2021, S3)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from raynas.nets.block import BlockShape
from raynas.nets.channels import Channels
from raynas.nets.heads import classify, select_heads
from raynas.nets.layers import ElasticConv, ElasticLinear, ElasticNorm, ElasticQkv, SplitQkv, padded, select_layers
from raynas.nets.s3.block import RelativeBias, WindowBlock, WindowShape, resize_bias, windows_of
from raynas.nets.sharing import NESTED, Side
from raynas.nets.stages import ElasticStage, StagedSupernet
from raynas.nets.windows import Windows
from raynas.space import Arch, Space
from raynas.space.families.rules import hidden_width
from raynas.space.families.s3 import MERGED, S3Constants, grids
from raynas.space.families.stages import most_blocks, running


@dataclass(frozen=True, eq=False)
class StageShape:
    """What acts in one stage: the channels of the stage before (None for the first), its own, its blocks by place."""

    inputs: Channels | None
    width: Channels
    blocks: dict[int, WindowShape]


class PatchEmbedding(nn.Module):
    """A convolution over patches that do not overlap, which starts as torch's own does, and a norm."""

    def __init__(self, channels: int, width: int, constants: S3Constants):
        super().__init__()
        self.conv = ElasticConv(channels, width, constants.patch_size, stride=constants.patch_size)
        self.norm = ElasticNorm(width, constants.norm_eps)
        self.images = Channels.first(channels)

    def select(self, width: Channels) -> dict[str, Tensor]:
        """The acting part of the parameters."""
        return select_layers(self, {"conv": (self.images, width), "norm": (width,)})

    def forward(self, images: Tensor, width: Channels) -> Tensor:
        """[batch, channels, height, width] to tokens [batch, tokens, width]."""
        x = self.conv(padded(images, self.conv.stride), self.images, width)
        return self.norm(width.mask(x.flatten(2).transpose(1, 2)), width)


class Merging(nn.Module):
    """Two by two tokens to one: a norm over all their channels, and a linear layer (Liu et al., 2021, section 3.1).

    The four tokens' channels lie behind one another, each as wide as the supernet: the list of channels of the stage
    before is tiled. A grid with an odd side is padded with zeros, which the norm counts as channels.

    Args:
        inputs: embedding channels held of the stage before.
        width: embedding channels held.
        before: rows and columns of the stage before.
        eps: of the norm.
    """

    def __init__(self, inputs: int, width: int, before: tuple[int, int], eps: float):
        super().__init__()
        self.inputs, self.before = inputs, before
        self.norm = ElasticNorm(MERGED * inputs, eps)
        self.linear = ElasticLinear(MERGED * inputs, width, bias=False)

    def select(self, inputs: Channels, width: Channels) -> dict[str, Tensor]:
        """The acting part of the parameters."""
        merged = inputs.tiled(MERGED, self.inputs)
        return select_layers(self, {"norm": (merged,), "linear": (merged, width)})

    def forward(self, x: Tensor, inputs: Channels, width: Channels) -> Tensor:
        """Tokens [batch, tokens, inputs] to [batch, merged tokens, width]."""
        below, right = (side % 2 for side in self.before)
        x = F.pad(x.unflatten(1, self.before), (0, 0, 0, right, 0, below))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [batch, rows, row of 2, columns, column of 2, inputs]
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # as released: the left two from above, then the right
        merged = inputs.tiled(MERGED, self.inputs)
        return width.mask(self.linear(self.norm(x, merged), merged, width))


class Stage(ElasticStage[WindowBlock]):
    """A merging, but in the first stage, and blocks. Of the blocks that run, every second one's windows are shifted."""

    def __init__(self, space: Space, stage: int, inputs: int, grids: list[tuple[int, int]], blocks: int):
        super().__init__()
        constants, here = space.constants, f"stages.{stage}"
        self.grid = grid = grids[stage]
        self.width = width = int(max(space[f"{here}.width"].choices))
        self.merging = Merging(inputs, width, grids[stage - 1], constants.norm_eps) if stage else None

        def new_block(place: str) -> nn.Module:
            """A block as large as its choices are; nothing where it is never kept."""
            if not space.has(f"{place}.heads"):
                return nn.Identity()
            heads, window = (int(max(space[f"{place}.{leaf}"].choices)) for leaf in ("heads", "window"))
            hidden = int(hidden_width(width, max(space[f"{place}.mlp_ratio"].choices)))
            qkv: ElasticQkv | SplitQkv
            if constants.head_dim is None:
                query = int(max(space[f"{place}.query_width"].choices))
                qkv = SplitQkv(width, query, unit=1, bias=True, private="", heads=())
            else:
                qkv = ElasticQkv(width, heads, constants.head_dim, bias="head")
            bias = RelativeBias(heads, windows_of(grid, window, shifted=False).window)
            unit, scale, eps = constants.head_dim or 1, constants.attention_scale, constants.norm_eps
            return WindowBlock(width, hidden, qkv, unit, scale, eps, bias)

        self.blocks = nn.ModuleList(new_block(f"{here}.blocks.{i}") for i in range(blocks))

    def select(self, shape: StageShape) -> dict[str, Tensor]:
        """The acting part of the parameters."""
        parts = {f"blocks.{index}": self.block(index).select(block) for index, block in shape.blocks.items()}
        if self.merging is not None and shape.inputs is not None:
            parts["merging"] = self.merging.select(shape.inputs, shape.width)
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}

    def forward(self, x: Tensor, shape: StageShape, paths: Tensor | None) -> Tensor:
        """Tokens [batch, tokens, inputs] to [batch, tokens, width]; in the first stage both are the same.

        Args:
            paths: [places, 2, batch]; see `Block.forward`.
        """
        if self.merging is not None and shape.inputs is not None:
            x = self.merging(x, shape.inputs, shape.width)
        for index, block in shape.blocks.items():
            x = self.block(index)(x, block, None if paths is None else paths[index])
        return x


class S3Supernet(StagedSupernet[Stage]):
    """A Swin of elastic widths, depths (or kept blocks), windows, heads, query widths and MLP ratios.

    One list of channels serves a stage's whole residual stream: the outputs of its merging (of the patch embedding in
    the first stage), its blocks, and, tiled, the inputs of the next merging.
    """

    def __init__(self, space: Space):
        super().__init__(space)
        constants = space.constants
        self.grids = grids(space)
        inputs, stages = 0, []
        for index, blocks in enumerate(most_blocks(space.dimensions)):
            stages.append(Stage(space, index, inputs, self.grids, blocks))
            inputs = stages[-1].width
        self.embedding = PatchEmbedding(space.channels, stages[0].width, constants)
        self.stages = nn.ModuleList(stages)
        self.norm = ElasticNorm(inputs, constants.norm_eps)
        self.head = ElasticLinear(inputs, space.classes)
        self.token_head = ElasticLinear(inputs, space.classes) if constants.token_head else None

    # -- shapes ----------------------------------------------------------------------------------------------------

    def shape(self, arch: Arch, side: Side | None = None) -> list[StageShape]:
        """What acts in each stage for one arch.

        Raises:
            UserError: the supernet does not hold the arch.
        """
        self.check_stages(arch)
        share, shapes = self.pattern[side], list[StageShape]()
        for index, stage in enumerate(self._stages):
            width = share(int(arch[f"stages.{index}.width"]), stage.width)
            blocks = {}
            for order, place in enumerate(running(arch, index)):
                block = stage.block(place)
                heads, query, hidden = self._block_values(arch, index, place)
                blocks[place] = WindowShape(
                    width=width,
                    query=share(query, block.qkv.heads),
                    heads=heads,
                    hidden=share(hidden, block.fc1.weight.shape[0]),
                    table=share(heads, block.bias.table.shape[0]),
                    windows=self._windows(arch, index, place, order),
                )
            shapes.append(StageShape(shapes[-1].width if shapes else None, width, blocks))
        return shapes

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> list[StageShape]:
        """What acts in each row of a mixed batch.

        Args:
            archs: archs that differ in what masks can express (see `unmaskable`).
            rows: [batch] int64, each row's arch.
        """
        for arch in archs:
            self.check_stages(arch)
        shapes: list[StageShape] = []
        for index in range(len(self.stages)):
            width = Channels.first_of_each([int(arch[f"stages.{index}.width"]) for arch in archs], rows)
            runs = [set(running(arch, index)) for arch in archs]
            blocks = {}
            for order, place in enumerate(sorted(set.union(*runs))):
                values = [
                    self._block_values(arch, index, place) if place in each else None
                    for arch, each in zip(archs, runs, strict=True)
                ]
                of_rows = BlockShape.of_rows(width, values, rows)
                any_arch = next(arch for arch, each in zip(archs, runs, strict=True) if place in each)
                table, windows = Channels.first(of_rows.heads), self._windows(any_arch, index, place, order)
                blocks[place] = WindowShape(**vars(of_rows), table=table, windows=windows)
            shapes.append(StageShape(shapes[-1].width if shapes else None, width, blocks))
        return shapes

    def _block_values(self, arch: Arch, stage: int, place: int) -> tuple[int, int, int]:
        """Heads, query width (in heads where they are of fixed width) and hidden channels of a block that runs."""
        block = f"stages.{stage}.blocks.{place}"
        heads = int(arch[f"{block}.heads"])
        query = heads if self.space.constants.head_dim is not None else int(arch[f"{block}.query_width"])
        return heads, query, int(hidden_width(arch[f"stages.{stage}.width"], arch[f"{block}.mlp_ratio"]))

    def _windows(self, arch: Arch, stage: int, place: int, order: int) -> Windows:
        """How a block cuts its grid, the `order`-th of those that run."""
        return windows_of(self.grids[stage], int(arch[f"stages.{stage}.blocks.{place}.window"]), shifted=order % 2 == 1)

    # -- the network -----------------------------------------------------------------------------------------------

    def run(self, x: Tensor, shapes: list[StageShape], paths: Tensor | None, patches: bool) -> Tensor:
        """Images to logits as `forward` returns them; the one pass behind every execution."""
        x = self.embedding(x, shapes[0].width)
        for index, (stage, shape) in enumerate(zip(self._stages, shapes, strict=True)):
            x = stage(x, shape, self.stage_paths(paths, index))
        x = self.norm(x, shapes[-1].width)
        return classify(self.head, self.token_head if patches else None, x.mean(1), x, shapes[-1].width)

    def run_one(self, x: Tensor, arch: Arch, paths: Tensor | None, side: Side | None, patches: bool) -> Tensor:
        """Logits of a batch that is all one arch's, as `forward` returns them."""
        return self.run(x, self.shape(arch, side), paths, patches)

    def run_masked(self, x: Tensor, archs: list[Arch], rows: Tensor, paths: Tensor | None, patches: bool) -> Tensor:
        """Logits of a mixed batch in one pass, as `forward` returns them."""
        return self.run(x, self.shape_of_rows(archs, rows), paths, patches)

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of the last stage's tokens."""
        return self.grids[-1]

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Every block's table of biases, with rows and columns of its largest window.

        They are of distances in tokens, not of places, and change with the image where the grid cuts that window.
        """
        return {
            f"{name}.bias.table": (1 + block.bias.table.shape[1] // 2, 1 + block.bias.table.shape[2] // 2)
            for name, block in self.named_modules()
            if isinstance(block, WindowBlock)
        }

    def resize_table(self, table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
        """A block's table of biases for windows of another size; see `resize_bias`."""
        return resize_bias(table, before, after)

    # -- parts -----------------------------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, object], side: Side | None = None) -> dict[str, Tensor]:
        """The acting part of every parameter that an arch uses, by name: the subnet's state dict, as views."""
        shapes = self.shape(self._arch(arch), side)
        parts = {
            "embedding": self.embedding.select(shapes[0].width),
            **self.select_stages(shapes),
            "norm": self.norm.select(shapes[-1].width),
            **select_heads(self.head, self.token_head, shapes[-1].width),
        }
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}

    def maskable(self, dimension: str) -> bool:
        """Whether masks can express different values of a dimension within one batch, where widths are nested.

        Not of windows; nor of blocks dropped anywhere, which change whose windows are shifted; nor of heads that are
        cut out of a query width.
        """
        leaf = dimension.rpartition(".")[2]
        fixed = {"window", "kept"} | ({"heads", "query_width"} if self.space.constants.head_dim is None else set())
        return self.space.constants.sharing in NESTED and leaf not in fixed

    def prefers_masks(self, x: Tensor, archs: Sequence[Arch]) -> bool:
        """Masks for small work, groups for large (see `MASKS_BELOW`)."""
        tokens = sum(math.prod(grid) for grid in self.grids) / len(self.grids)
        return len(x) / len(archs) * tokens < MASKS_BELOW

    def no_weight_decay(self) -> set[str]:
        """The tables of biases, as the release means it; 1-D tensors (norms, biases) are the trainer's to exempt."""
        return set(self.position_grids())


MASKS_BELOW = 256
"""Tokens of one arch's rows, at the mean of the stages' grids, below which a masked batch beats a grouped one.

Measured on one CPU thread, forward and backward, groups' time over masks'. The digits' space: 2.1 at 160 tokens and 1.6
at 320 with 8 archs, 1.2 at 640 and 0.9 at 1280 with 4. S3's first space at 56 pixels: 1.7 at 66 and 1.3 at 132 tokens
with 4 archs, 0.9 at 265 with 2.
"""
