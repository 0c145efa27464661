"""The s3 supernet: Swin transformers of elastic shape (Liu et al., 2021; Chen et al., 2021, S3)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.s3.block import RelativeBias, WindowBlock, WindowShape, resize_bias, windows_of
from raynas.families.s3.space import MERGED, S3Constants, grids, shifted, window_sides
from raynas.nets.attention_maps import Attending
from raynas.nets.block import BlockShape
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticConv, ElasticLinear, ElasticNorm, padded, select_layers
from raynas.nets.qkv import ElasticQkv, SplitQkv
from raynas.nets.sharing import NESTED, Sharing
from raynas.nets.stages import ElasticStage, StagedSupernet, new_blocks
from raynas.nets.windows import Windows
from raynas.space import Arch, Space
from raynas.space.rules import hidden_width
from raynas.space.stages import most_blocks

torch.fx.wrap("padded")


class PatchEmbedding(nn.Module):
    """A convolution over non-overlapping patches with torch's initialisation, and a norm."""

    def __init__(self, channels: int, width: int, constants: S3Constants):
        super().__init__()
        self.conv = ElasticConv(channels, width, constants.patch_size, stride=constants.patch_size)
        self.norm = ElasticNorm(width, constants.norm_eps)
        self.images = Channels.first(channels)

    def select(self, width: Channels) -> dict[str, Tensor]:
        return select_layers(self, {"conv": (self.images, width), "norm": (width,)})

    def forward(self, images: Tensor, width: Channels) -> Tensor:
        """Map [batch, channels, height, width] to tokens [batch, tokens, width]."""
        x = self.conv(padded(images, self.conv.stride), self.images, width)
        return self.norm(width.mask(x.flatten(2).transpose(1, 2)), width)


class Merging(nn.Module):
    """Merging of 2 x 2 tokens: a norm over all their channels, and a linear layer (Liu et al., 2021, section 3.1).

    The four tokens' channels are concatenated, each at the supernet's width: the active channels of the stage before
    are tiled. A grid with an odd side is padded with zeros, which the norm counts as channels.

    Args:
        before: rows and columns of the stage before.
    """

    def __init__(self, inputs: int, width: int, before: tuple[int, int], eps: float):
        super().__init__()
        self.inputs, self.before = inputs, before
        self.norm = ElasticNorm(MERGED * inputs, eps)
        self.linear = ElasticLinear(MERGED * inputs, width, bias=False)

    def select(self, inputs: Channels, width: Channels) -> dict[str, Tensor]:
        merged = inputs.tiled(MERGED, self.inputs)
        return select_layers(self, {"norm": (merged,), "linear": (merged, width)})

    def forward(self, x: Tensor, inputs: Channels, width: Channels) -> Tensor:
        """Map tokens [batch, tokens, inputs] to [batch, merged tokens, width]."""
        below, right = (side % 2 for side in self.before)
        x = F.pad(x.unflatten(1, self.before), (0, 0, 0, right, 0, below))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # [batch, rows, row of 2, columns, column of 2, inputs]
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3).flatten(1, 2)  # as released: left upper, left lower, then right
        merged = inputs.tiled(MERGED, self.inputs)
        return width.mask(self.linear(self.norm(x, merged), merged, width))


class Stage(ElasticStage[WindowBlock]):
    """A merging, except in the first stage, and blocks, every second of which has shifted windows."""

    joint = "merging"

    def __init__(self, space: Space, stage: int, inputs: int, grids: list[tuple[int, int]], blocks: int):
        super().__init__()
        constants = space.constants
        self.grid = grid = grids[stage]
        self.width = width = int(max(space[f"stages.{stage}.width"].choices))
        self.merging = Merging(inputs, width, grids[stage - 1], constants.norm_eps) if stage else None

        def new_block(place: str) -> nn.Module:
            """Build a block of its largest choices."""
            heads, window = (int(max(space[f"{place}.{leaf}"].choices)) for leaf in ("heads", "window"))
            hidden = int(hidden_width(width, max(space[f"{place}.mlp_ratio"].choices)))
            qkv: ElasticQkv | SplitQkv
            if constants.head_dim is None:
                query = int(max(space[f"{place}.query_width"].choices))
                qkv = SplitQkv(width, query, unit=1, bias=True, private="", heads=())
            else:
                qkv = ElasticQkv(width, heads, constants.head_dim, bias="head")
            bias = RelativeBias(heads, windows_of(grid, window_sides(space, window), shifted=False).window)
            unit, scale, eps = constants.head_dim or 1, constants.attention_scale, constants.norm_eps
            return WindowBlock(bias, width, hidden, qkv, unit, scale, eps)

        self.blocks = new_blocks(space, stage, blocks, new_block)


class S3Supernet(StagedSupernet[Stage]):
    """A Swin of elastic widths, depths (or kept blocks), windows, heads, query widths and MLP ratios.

    A stage's whole residual stream has the same active channels: the outputs of its merging (of the patch embedding in
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
        self.add_heads(inputs)
        self.settle()

    # -- shapes ----------------------------------------------------------------------------------------------------

    def block_shape(self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing) -> WindowShape:
        block = self._stages[stage].block(place)
        heads, query, hidden = self._block_values(arch, stage, place)
        units = share(query, block.qkv.heads, block.qkv.unit_kind)
        return WindowShape(
            width=width,
            query=units,
            heads=heads,
            hidden=share(hidden, block.fc1.weight.shape[0], "hidden"),
            table=share(heads, block.bias.table.shape[0]) if self.space.constants.head_dim is None else units,
            windows=self._windows(arch, stage, place),
        )

    def block_shape_of_rows(
        self, archs: Sequence[Arch | None], stage: int, place: int, width: Channels, rows: Tensor
    ) -> WindowShape:
        """Return a block's shape for a mixed batch; archs that do not run it are None, the others share windows."""
        values = [None if arch is None else self._block_values(arch, stage, place) for arch in archs]
        of_rows = BlockShape.of_rows(width, values, rows)
        windows = self._windows(next(arch for arch in archs if arch is not None), stage, place)
        return WindowShape(**vars(of_rows), table=Channels.first(of_rows.heads), windows=windows)

    def _block_values(self, arch: Arch, stage: int, place: int) -> tuple[int, int, int]:
        """Return heads, query width (in heads if their width is fixed) and hidden channels of a block that runs."""
        block = f"stages.{stage}.blocks.{place}"
        heads = int(arch[f"{block}.heads"])
        query = heads if self.space.constants.head_dim is not None else int(arch[f"{block}.query_width"])
        return heads, query, int(hidden_width(arch[f"stages.{stage}.width"], arch[f"{block}.mlp_ratio"]))

    def _windows(self, arch: Arch, stage: int, place: int) -> Windows:
        """Return the windows of a block."""
        sides = window_sides(self.space, int(arch[f"stages.{stage}.blocks.{place}.window"]))
        return windows_of(self.grids[stage], sides, shifted(self.space, arch, stage, place))

    # -- the network -----------------------------------------------------------------------------------------------

    def embed(self, x: Tensor, width: Channels) -> Tensor:
        """Map images to tokens [batch, tokens, width]."""
        return self.embedding(x, width)

    @property
    def token_grid(self) -> tuple[int, int]:
        return self.grids[-1]

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return rows and columns of the largest window of every block's table of biases.

        Biases are for distances in tokens, so a table changes with the image only if the grid clips that window.
        """
        return {
            f"{name}.bias.table": (1 + block.bias.table.shape[1] // 2, 1 + block.bias.table.shape[2] // 2)
            for name, block in self.named_modules()
            if isinstance(block, WindowBlock)
        }

    def resize_table(self, table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
        """Resize a block's table of biases to another window.

        A window of more tokens adds offsets (see `resize_bias`). One that scales with the image has the same offsets in
        pixels, between which the table is interpolated.
        """
        if self.space.constants.windows_for is None:
            return resize_bias(table, before, after)
        from timm.layers import resize_rel_pos_bias_table  # local: timm takes seconds to import

        shape = (len(table), *(2 * side - 1 for side in after))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about timm's indexing
            return resize_rel_pos_bias_table(table, after, shape, before)

    windows_scale = True

    def space_at(self, size: int | tuple[int, int], scaled: bool = False) -> Space:
        """Return the space of the same networks for images of another size."""
        constants = self.space.constants
        if not scaled or constants.windows_for is not None:
            return super().space_at(size)
        fixed = constants.model_copy(update={"windows_for": self.space.input_size})
        return self.space.replace(constants=fixed).with_input(size=size)

    # -- timm's conventions ----------------------------------------------------------------------------------------

    layout = output_fmt = "NHWC"
    first_conv = "embedding.conv"

    def stage_grids(self, acting: Any) -> list[tuple[int, tuple[int, int]]]:
        return [(self.space.constants.patch_size * 2**stage, grid) for stage, grid in enumerate(self.grids)]

    def block_attends(self, name: str, shape: WindowShape, pixels: int, grid: tuple[int, int]) -> list[Attending]:
        """Return the attention of a block inside its windows."""
        return [Attending(name, shape.windows, pixels)]

    # -- parts -----------------------------------------------------------------------------------------------------

    def select_embedding(self, width: Channels) -> dict[str, dict[str, Tensor]]:
        return {"embedding": self.embedding.select(width)}

    def maskable(self, dimension: str) -> bool:
        """Return True if different values of a dimension can be masked within one batch, which needs nested widths.

        Windows cannot be masked, nor `kept`, which changes the blocks with shifted windows, nor heads that divide a
        query width.
        """
        leaf = dimension.rpartition(".")[2]
        fixed = {"window", "kept"} | ({"heads", "query_width"} if self.space.constants.head_dim is None else set())
        return self.space.constants.sharing in NESTED and leaf not in fixed

    def tokens(self, archs: Sequence[Arch]) -> float:
        """Return the number of tokens, averaged over the stages."""
        return sum(math.prod(grid) for grid in self.grids) / len(self.grids)

    def no_weight_decay(self) -> set[str]:
        """Return the names of the tables of biases, as the release intends; the trainer exempts 1-D tensors itself."""
        return set(self.position_grids())


SUPERNET = S3Supernet
