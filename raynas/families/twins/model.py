"""The twins supernet, for Twins-SVT and ViTAS's Twins-shaped spaces."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.twins.attention import AttentionShape, GlobalAttention, LocalAttention
from raynas.families.twins.space import grids, query_gene
from raynas.nets.attention_maps import Attending
from raynas.nets.channels import Channels
from raynas.nets.layers import Bank, ElasticDepthwiseConv, ElasticLinear, ElasticNorm, ElasticPatchConv, select_layers
from raynas.nets.sharing import Sharing
from raynas.nets.stages import ElasticStage, StagedSupernet, StageShape, new_blocks
from raynas.nets.windows import Windows
from raynas.space import Arch, Space
from raynas.space.stages import most_blocks


@dataclass(frozen=True, eq=False)
class TwinsBlockShape:
    """Kind of attention and active channels of one block.

    Attributes:
        kind: `lsa` or `gsa`, see `kind_of`.
    """

    kind: str
    attention: AttentionShape
    hidden: Channels


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream.

    Each kind of attention has its own parameters; the norms and the MLP are shared.
    """

    def __init__(self, space: Space, stage: int, grid: tuple[int, int], width: int, place: str):
        super().__init__()
        constants = space.constants
        heads = space[f"{place}.heads"].choices
        query, hidden = (int(max(space[f"{place}.{leaf}"].choices)) for leaf in (query_gene(constants), "mlp_width"))

        def attention(kind: str) -> nn.Module:
            if kind == "lsa":
                return LocalAttention(constants, grid, width, query, heads)
            return GlobalAttention(constants, grid, width, query, heads, constants.reductions[stage])

        self.norm1 = ElasticNorm(width, constants.norm_eps)
        self.attention = Bank([kind_of(each) for each in space[f"{place}.global_attention"].choices], attention)
        self.norm2 = ElasticNorm(width, constants.norm_eps)
        self.fc1 = ElasticLinear(width, hidden)
        self.fc2 = ElasticLinear(hidden, width)
        self.query = query

    def axes(self, shape: TwinsBlockShape) -> dict[str, tuple[Any, ...]]:
        width, hidden = shape.attention.width, shape.hidden
        return {
            "norm1": (width,),
            "attention": (shape.kind, shape.attention),
            "norm2": (width,),
            "fc1": (width, hidden),
            "fc2": (hidden, width),
        }

    def select(self, shape: TwinsBlockShape) -> dict[str, Tensor]:
        return select_layers(self, self.axes(shape))

    def forward(self, x: Tensor, shape: TwinsBlockShape, paths: Tensor | None) -> Tensor:
        """Run the block on tokens [batch, tokens, width].

        Args:
            paths: [2, batch], factors on each row's two branches; None for 1.
        """
        axes = self.axes(shape)
        attended = self.attention.of(shape.kind)(self.norm1(x, *axes["norm1"]), shape.attention)
        x = x + _branch(attended, None if paths is None else paths[0])
        hidden = F.gelu(self.fc1(self.norm2(x, *axes["norm2"]), *axes["fc1"]))
        return x + _branch(self.fc2(hidden, *axes["fc2"]), None if paths is None else paths[1])


def kind_of(is_global: bool) -> str:
    """Return the paper's name: `gsa`, global sub-sampled, or `lsa`, locally grouped self-attention."""
    # Module names; not `global`, a keyword, because torch.export writes them into Python code.
    return "gsa" if is_global else "lsa"


def _branch(x: Tensor, paths: Tensor | None) -> Tensor:
    return x if paths is None else x * paths[:, None, None].to(x.dtype)


class Stage(ElasticStage[Block]):
    """A patch embedding with its norm, blocks, and a positional-encoding generator.

    The generator, a depthwise 3 x 3 convolution added to the tokens, follows the first block that runs (Chu et al.,
    2021, section 3.2) or, in a stage without blocks, the patch embedding. So every network has positions, and archs
    with equal blocks in different places are the same network.
    """

    def __init__(self, space: Space, stage: int, grids: list[tuple[int, int]], inputs: int, blocks: int):
        super().__init__()
        constants, grid = space.constants, grids[stage]
        self.grid, self.before = grid, grids[stage - 1]
        self.width = width = int(max(space[f"stages.{stage}.width"].choices))
        self.images = Channels.first(space.channels)
        self.embedding = ElasticPatchConv(inputs, width, constants.patch_sizes[stage])
        self.norm = ElasticNorm(width, constants.embedding_norm_eps)
        self.position = ElasticDepthwiseConv(width)
        self.blocks = new_blocks(space, stage, blocks, lambda place: Block(space, stage, grid, width, place))

    def select(self, shape: StageShape) -> dict[str, Tensor]:
        inputs = self.images if shape.inputs is None else shape.inputs
        axes = {"embedding": (inputs, shape.width), "norm": (shape.width,), "position": (shape.width,)}
        selected = select_layers(self, axes)
        for index, block in shape.blocks.items():
            parts = self.block(index).select(block)
            selected.update({f"blocks.{index}.{name}": tensor for name, tensor in parts.items()})
        return selected

    def forward(self, x: Tensor, shape: StageShape, paths: Tensor | None) -> Tensor:
        """Map images, or the tokens [batch, tokens, inputs] of the stage before, to tokens [batch, tokens, width].

        Args:
            paths: [places, 2, batch]; see `Block.forward`.
        """
        inputs = self.images if shape.inputs is None else shape.inputs
        x = x if shape.inputs is None else _image(x, self.before)
        x = self.norm(self.embedding(x, inputs, shape.width).flatten(2).transpose(1, 2), shape.width)
        running = list(shape.blocks.items())
        x = self.run_blocks(x, dict(running[:1]), paths)
        x = x + self.position(_image(x, self.grid), shape.width).flatten(2).transpose(1, 2)
        return self.run_blocks(x, dict(running[1:]), paths)


def _image(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Reshape tokens [batch, tokens, width] to [batch, width, rows, columns]."""
    return x.transpose(1, 2).unflatten(2, grid)


class TwinsSupernet(StagedSupernet[Stage]):
    """A Twins-SVT of elastic widths, depths (or kept blocks), kinds of attention, heads, query and hidden widths.

    A stage's whole residual stream has the same active channels: the outputs of its patch embedding, its norms, inputs
    and outputs of its attention (both axes of the sub-sampling convolution), of its MLP and of its positional-encoding
    generator, and the inputs of the next stage's patch embedding.
    """

    def __init__(self, space: Space):
        super().__init__(space)
        inputs, stages = space.channels, []
        for index, blocks in enumerate(most_blocks(space.dimensions)):
            stages.append(Stage(space, index, grids(space), inputs, blocks))
            inputs = stages[-1].width
        self.stages = nn.ModuleList(stages)
        self.add_heads(inputs)
        self.settle()

    def embed(self, x: Tensor, width: Channels) -> Tensor:
        """Return the images: the first stage has a patch embedding like all others."""
        return x

    def select_embedding(self, width: Channels) -> dict[str, dict[str, Tensor]]:
        """Return no parameters."""
        return {}

    def block_shape(self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing) -> TwinsBlockShape:
        block = self._stages[stage].block(place)
        is_global, heads, query, hidden = (
            arch[f"stages.{stage}.blocks.{place}.{leaf}"]
            for leaf in ("global_attention", "heads", query_gene(arch.space.constants), "mlp_width")
        )
        kind = kind_of(is_global)
        units = share(int(query), block.query, block.attention.of(kind).qkv.unit_kind)
        hidden = share(int(hidden), block.fc1.weight.shape[0], "hidden")
        return TwinsBlockShape(kind, AttentionShape(width, units, int(heads)), hidden)

    @property
    def token_grid(self) -> tuple[int, int]:
        return self._stages[-1].grid

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return no tables: positions are convolved from the tokens, on any grid."""
        return {}

    first_conv = "stages.0.embedding"

    def stage_grids(self, acting: Any) -> list[tuple[int, tuple[int, int]]]:
        sides = accumulate(self.space.constants.patch_sizes, operator.mul)
        return [(side, stage.grid) for side, stage in zip(sides, self._stages)]  # noqa: B905  stages may be cut off

    def block_attends(self, name: str, shape: TwinsBlockShape, pixels: int, grid: tuple[int, int]) -> list[Attending]:
        """Return the attention of a block: inside windows, or to the whole grid by squares of tokens."""
        attention = cast(Block, self.get_submodule(name)).attention.of(shape.kind)
        if isinstance(attention, LocalAttention):
            return [Attending(name, attention.windows, pixels)]
        squares = cast(GlobalAttention, attention).reduction
        return [Attending(name, Windows(grid, grid), pixels, 1 if squares is None else squares.patch)]

    def no_weight_decay(self) -> set[str]:
        """Return the names of the positional-encoding generators; the trainer exempts 1-D tensors itself."""
        return {f"stages.{index}.position.weight" for index in range(len(self.stages))}


SUPERNET = TwinsSupernet
