"""The vit supernet, for AutoFormer's and DeiT-shaped spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.vit.attention import RelativeIndex, RelativePosition
from raynas.families.vit.class_attention import ClassBlock
from raynas.families.vit.cost import slots, stacked_depth
from raynas.families.vit.space import block_genes, hidden_channels
from raynas.nets.attention_maps import Attending
from raynas.nets.block import Block, BlockShape
from raynas.nets.channels import Channels
from raynas.nets.layers import Bank, ElasticNorm, PatchStem, Through, new_parameter
from raynas.nets.qkv import ElasticQkv, SplitQkv
from raynas.nets.sharing import NESTED, Side
from raynas.nets.supernet import Supernet
from raynas.nets.timm_conventions import Level, checkpointed
from raynas.nets.windows import Windows
from raynas.space import Arch, Space
from raynas.space.rules import hidden_width


@dataclass(frozen=True, eq=False)
class Shape:
    """Patch size and active channels of a network; blocks by place in the supernet.

    Attributes:
        class_hidden: hidden channels of the class-attention blocks; None if there are none.
    """

    patch_size: int
    width: Channels
    blocks: dict[int, BlockShape]
    class_hidden: Channels | None


class VitSupernet(Supernet):
    """A vision transformer of elastic patch size, width, depth (or kept blocks), heads, query and hidden widths.

    Attributes:
        grad_checkpointing: True if blocks keep no intermediate results for the backward pass.

    Raises:
        UserError: the space has an MLP without a hidden channel.
    """

    grad_checkpointing = False
    norms_all = True

    def __init__(self, space: Space):
        super().__init__(space)
        constants = space.constants
        width = int(max(space["width"].choices))
        self.stem = Bank(
            space["patch_size"].choices,
            lambda patch: PatchStem(
                space.channels,
                space.input_size,
                patch,
                width,
                constants.class_tokens,
                constants.private_class_token,
                late=constants.class_attention is not None,
            ),
        )
        shared_token = constants.class_token and not constants.private_class_token
        self.class_token = new_parameter(1, constants.class_tokens, width) if shared_token else None
        self.blocks = nn.ModuleList(self._new_block(i, width) for i in range(slots(space)))
        late = 0 if constants.class_attention is None else constants.class_attention.blocks
        self.class_blocks = nn.ModuleList(ClassBlock(width, constants) for _ in range(late))
        self.norm: ElasticNorm | Through = ElasticNorm(width, constants.norm_eps)
        self.add_classifiers(width, space)
        self.relative: Bank | None = None
        if constants.relative_position is not None:
            self.relative = Bank(
                space["patch_size"].choices,
                lambda patch: RelativeIndex(
                    self.stem.of(patch).grid, constants.relative_position, constants.tokens_in_front, constants.head_dim
                ),
            )
        self.settle()

    def _new_block(self, index: int, width: int) -> nn.Module:
        """Build a block of its largest choices, or an identity if it is never kept."""
        heads, query, mlp = block_genes(self.space, index)
        if not self.space.has(heads):
            return nn.Identity()
        hidden = int(max(hidden_channels(width, mlp, value) for value in self.space[mlp].choices))
        narrowest = hidden_channels(min(self.space["width"].choices), mlp, min(self.space[mlp].choices))
        if narrowest < 1:
            raise UserError(f"space {self.space.name}: the smallest MLP of block {index} has no hidden channel")
        constants, units = self.space.constants, int(max(self.space[query].choices))
        unit, distance = constants.head_dim or 1, constants.relative_position
        qkv: ElasticQkv | SplitQkv
        if constants.head_dim is not None and constants.private_heads == "none":
            qkv = ElasticQkv(width, units, unit, constants.qkv_bias)
        else:
            private = constants.private_heads.replace("none", "")
            qkv = SplitQkv(width, units, unit, constants.qkv_bias != "none", private, self.space[heads].choices)
        relative = None if distance is None else RelativePosition(distance, unit)
        scale, eps = constants.attention_scale, constants.norm_eps
        return Block(width, hidden, qkv, unit, scale, eps, relative, constants.layer_scale)

    # -- shapes ----------------------------------------------------------------------------------------------------

    def places(self, arch: Arch) -> list[int]:
        """Return the places of the blocks that an arch runs."""
        space = arch.space
        if "depth" in arch:
            return list(range(int(arch["depth"])))
        if "block.heads" not in arch:
            return [index for index in range(slots(space)) if arch[f"blocks.{index}.kept"]]
        _, query, mlp = block_genes(space, 0)
        return list(range(int(stacked_depth(space, arch["patch_size"], arch["width"], arch[query], arch[mlp]))))

    def _block_values(self, arch: Arch, index: int) -> tuple[int, int, int]:
        """Return heads, query width (in heads if their width is fixed) and hidden channels of a block that runs."""
        heads, query, mlp = block_genes(arch.space, index)
        return int(arch[heads]), int(arch[query]), int(hidden_channels(arch["width"], mlp, arch[mlp]))

    def acting(self, arch: Arch, side: Side | None = None) -> Shape:
        share = self.pattern[side]
        width = share(int(arch["width"]), self.classified, "width")
        blocks = {}
        for index in self.places(arch):
            block = self.block(index)
            heads, query, hidden = self._block_values(arch, index)
            units = share(query, block.qkv.heads, block.qkv.unit_kind)
            blocks[index] = BlockShape(width, units, heads, share(hidden, block.fc1.weight.shape[0], "hidden"))
        class_hidden = None
        for own in self._class_hidden([arch]):
            class_hidden = share(own, self._class_hidden_at(self.classified), "hidden")
        return Shape(int(arch["patch_size"]), width, blocks, class_hidden)

    def _class_hidden(self, archs: Sequence[Arch]) -> list[int]:
        """Return the hidden channels of each arch's class-attention blocks; none if there are no such blocks."""
        return [self._class_hidden_at(int(arch["width"])) for arch in archs] if len(self.class_blocks) else []

    def _class_hidden_at(self, width: int) -> int:
        return int(hidden_width(width, self.space.constants.class_attention.mlp_ratio))

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> Shape:
        width = Channels.first_of_each([int(arch["width"]) for arch in archs], rows)
        running = [set(self.places(arch)) for arch in archs]
        blocks = {}
        for index in sorted(set.union(*running)):
            values = [
                self._block_values(arch, index) if index in each else None
                for arch, each in zip(archs, running, strict=True)
            ]
            blocks[index] = BlockShape.of_rows(width, values, rows)
        hidden = self._class_hidden(archs)
        class_hidden = Channels.first_of_each(hidden, rows) if hidden else None
        return Shape(int(archs[0]["patch_size"]), width, blocks, class_hidden)

    def block(self, index: int) -> Block:
        """Return one block.

        Raises:
            UserError: the supernet is not that deep, or does not have this block.
        """
        if index >= len(self.blocks):
            raise UserError(f"the arch has more than the supernet's {len(self.blocks)} blocks")
        block = self.blocks[index]
        if not isinstance(block, Block):
            raise UserError(f"the arch keeps block {index}, which no arch of the supernet keeps")
        return block

    # -- the network -----------------------------------------------------------------------------------------------

    def trunk(self, x: Tensor, acting: Shape, paths: Tensor | None, taps: list[Tensor] | None = None) -> Tensor:
        """Map images to the last block's output [batch, tokens, width]; `taps` collects every block's."""
        index = None if self.relative is None else self.relative.of(acting.patch_size)
        x = self.stem.of(acting.patch_size)(x, acting.width, self._shared_token(acting))
        for i, shape in acting.blocks.items():
            block, factors = self.block(i), None if paths is None else paths[i]
            if self.grad_checkpointing:
                x = checkpointed(block, x, shape, factors, index)
            else:
                x = block(x, shape, factors, index)
            if taps is not None:
                taps.append(x)
        return x

    def _shared_token(self, acting: Shape) -> Tensor | None:
        """Return the class tokens if they are common to all patch sizes."""
        return None if self.class_token is None else acting.width.select(self.class_token, 2)

    def normed(self, x: Tensor, acting: Shape, whole: bool = True) -> Tensor:
        """Run the blocks of class attention, if there are any, and normalise all tokens."""
        if acting.class_hidden is not None:
            token, stem = self._shared_token(acting), self.stem.of(acting.patch_size)
            token = acting.width.select(stem.class_token, 2) if token is None else token
            x = torch.cat([acting.width.mask(token.expand(x.shape[0], -1, -1).to(x.dtype)), x], dim=1)
            for class_block in self.class_blocks:
                x = class_block(x, self.space.constants.class_tokens, acting.width, acting.class_hidden)
        return self.norm(x, acting.width)

    def pool(self, x: Tensor, acting: Shape) -> list[Tensor]:
        """Return the class tokens, or the mean of the patch tokens, after dropout."""
        constants = self.space.constants
        if constants.pool == "token":
            return [self.drop_features(x[:, place]) for place in range(constants.class_tokens)]
        return [self.drop_features(x[:, constants.class_tokens :].mean(1))]

    def head_width(self, acting: Shape) -> Channels:
        """Return the network's width."""
        return acting.width

    @property
    def token_grid(self) -> tuple[int, int]:
        """Rows and columns of the patch tokens.

        Raises:
            UserError: archs differ in their patch size.
        """
        patches = self.space["patch_size"].choices
        if len(patches) > 1:
            raise UserError(f"space {self.space.name}: patch_size {list(patches)} makes several grids of patch tokens")
        return self.stem.of(patches[0]).grid

    def attending(self) -> list[Attending]:
        """Return the blocks; class attention, whose only queries are class tokens, is left out."""
        shape, grid = self._settled_shape(), self.token_grid
        beside = self.space.constants.tokens_in_front
        windows = Windows(grid, grid)
        return [Attending(f"blocks.{i}", windows, shape.patch_size, class_tokens=beside) for i in shape.blocks]

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return the grids of the stems' positions, one for each patch size; relative position has no grid."""
        return {
            f"stem.{patch}.position": (stem.grid[0], stem.grid[1])
            for patch, stem in self.stem.items()
            if isinstance(stem, PatchStem)
        }

    def space_at(self, size: int | tuple[int, int], scaled: bool = False) -> Space:
        """Return the space of the same networks for images of another size.

        Raises:
            UserError: the family cannot take such images, or depths follow from MACs and would change.
        """
        constants = self.space.constants
        if constants.depth_macs is None:
            return super().space_at(size, scaled)
        if self._only is None:
            raise UserError(
                f"space {self.space.name}: depths follow from depth_macs: resize a subnet, supernet.extract"
            )
        room = {"depth_macs": ROOM_FOR_ALL, "max_depth": len(self.blocks)}
        return self.space.replace(constants=constants.model_copy(update=room)).with_input(size=size)

    def ramp_length(self) -> int:
        """Return the constant `drop_path_depth`."""
        return int(self.space.constants.drop_path_depth)

    # -- timm's conventions ----------------------------------------------------------------------------------------

    @property
    def pooling(self) -> str:
        """The pooling in timm's words: `token` or `avg`."""
        return "token" if self.space.constants.pool == "token" else "avg"

    @property
    def first_conv(self) -> str:
        """Name of the patch projection of a one-point space."""
        return f"stem.{self._settled_shape().patch_size}.proj"

    @property
    def tokens_in_front(self) -> int:
        """Number of class tokens that attend in every block."""
        return int(self.space.constants.tokens_in_front)

    def levels(self) -> list[Level]:
        """Return the blocks that run."""
        shape, grid = self._settled_shape(), self.token_grid
        return [
            Level(f"blocks.{place}", shape.width.count, shape.patch_size, grid, tap)
            for tap, place in enumerate(shape.blocks)
        ]

    def normed_level(self, x: Tensor, acting: Shape, last: bool) -> Tensor:
        """Normalise a block's output."""
        return self.normed(x, replace(acting, class_hidden=None))

    def until(self, acting: Shape, tap: int) -> Shape:
        return replace(acting, blocks=dict(list(acting.blocks.items())[: tap + 1]), class_hidden=None)

    def cut(self, tap: int) -> None:
        self.blocks, self.class_blocks = self.blocks[: max(self._settled_shape().blocks) + 1], nn.ModuleList()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of parameter names by layer: the stem, every block (the last with the norm), the head."""
        return {
            "stem": r"^(?:class_token|stem)\b",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^(?:norm|class_blocks)\b", (99999,))],
        }

    # -- parts -----------------------------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        shape = self.acting(self._arch(arch), side)
        parts = {
            "stem": self.stem.select(shape.patch_size, shape.width),
            **{f"blocks.{i}": self.block(i).select(block) for i, block in shape.blocks.items()},
            **{
                f"class_blocks.{i}": cast(ClassBlock, block).select(shape.width, shape.class_hidden)
                for i, block in enumerate(self.class_blocks)
                if shape.class_hidden is not None
            },
            "norm": self.norm.select(shape.width),
            **self.select_classifiers(shape.width),
        }
        state = {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}
        if self.class_token is not None:
            state["class_token"] = shape.width.select(self.class_token, 2)
        return state

    def maskable(self, dimension: str) -> bool:
        """Return True if different values of a dimension can be masked within one batch.

        Heads that divide a query width or have private parameters cannot: rows would use other rows' parameters.
        """
        constants = self.space.constants
        whole_heads = constants.head_dim is not None and constants.private_heads == "none"
        leaf = dimension.rpartition(".")[2]
        nested = constants.sharing in NESTED and leaf != "patch_size"
        return nested and (whole_heads or leaf not in ("heads", "query_width"))

    def tokens(self, archs: Sequence[Arch]) -> int:
        """Return the number of tokens for the archs' common patch size, with the class tokens before the patches."""
        return int(self.stem.of(archs[0]["patch_size"]).position.shape[1])

    def no_weight_decay(self) -> set[str]:
        """Return the names of class tokens and absolute positions; the trainer exempts 1-D tensors itself.

        AutoFormer's relative-position tables decay, as in its release.
        """
        return {name for name, _ in self.named_parameters() if name.endswith(("class_token", ".position"))}


ROOM_FOR_ALL = 1e18
"""A MACs budget that fits any stack of blocks, so that its depth is `max_depth`."""


SUPERNET = VitSupernet
