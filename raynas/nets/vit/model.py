"""The vit supernet: AutoFormer's, and DeiT-shaped spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.layers import Bank, ElasticLinear, ElasticNorm, ElasticQkv, PatchStem
from raynas.nets.sharing import NESTED, PATTERNS
from raynas.nets.supernet import Supernet
from raynas.nets.vit.attention import RelativeIndex, RelativePosition
from raynas.nets.vit.cost import hidden_width
from raynas.space import Arch, Space


@dataclass(frozen=True, eq=False)
class BlockShape:
    """What acts in one block.

    Attributes:
        width: embedding channels.
        heads: attention heads.
        hidden: hidden channels of the MLP.
        acts: [batch, 1, 1] bool, the rows that are deep enough to run the block; None for all.
    """

    width: Channels
    heads: Channels
    hidden: Channels
    acts: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Shape:
    """What acts in the network."""

    patch_size: int
    width: Channels
    blocks: list[BlockShape]


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, space: Space, width: int, heads: int, hidden: int):
        super().__init__()
        constants = space.constants
        self.scale: float = constants.attention_scale
        self.head_dim: int = constants.head_dim
        self.norm1 = ElasticNorm(width, constants.norm_eps)
        self.qkv = ElasticQkv(width, heads, self.head_dim, constants.qkv_bias)
        distance = constants.relative_position
        self.relative = None if distance is None else RelativePosition(distance, self.head_dim)
        self.proj = ElasticLinear(heads * self.head_dim, width, in_unit=self.head_dim)
        self.norm2 = ElasticNorm(width, constants.norm_eps)
        self.fc1 = ElasticLinear(width, hidden)
        self.fc2 = ElasticLinear(hidden, width)

    def axes(self, shape: BlockShape) -> dict[str, tuple[Channels, ...]]:
        """The axes of each layer."""
        width, heads, hidden = shape.width, shape.heads, shape.hidden
        return {
            "norm1": (width,),
            "qkv": (width, heads),
            "relative": (),
            "proj": (heads, width),
            "norm2": (width,),
            "fc1": (width, hidden),
            "fc2": (hidden, width),
        }

    def select(self, shape: BlockShape) -> dict[str, Tensor]:
        """The acting part of the parameters."""
        return {
            f"{layer}.{name}": tensor
            for layer, axes in self.axes(shape).items()
            if getattr(self, layer) is not None
            for name, tensor in getattr(self, layer).select(*axes).items()
        }

    def forward(self, x: Tensor, shape: BlockShape, paths: Tensor | None, index: RelativeIndex | None) -> Tensor:
        """One block on tokens [batch, tokens, width].

        Args:
            paths: [2, batch], what each row's two branches are multiplied with; None for 1.
            index: the grid's pairs, where there is relative position.
        """
        axes = self.axes(shape)
        attended = self.attend(self.norm1(x, *axes["norm1"]), axes, index)
        x = x + _branch(attended, shape, None if paths is None else paths[0])
        hidden = shape.hidden.mask(F.gelu(self.fc1(self.norm2(x, *axes["norm2"]), *axes["fc1"])))
        return x + _branch(self.fc2(hidden, *axes["fc2"]), shape, None if paths is None else paths[1])

    def attend(self, x: Tensor, axes: dict[str, tuple[Channels, ...]], index: RelativeIndex | None) -> Tensor:
        """Multi-head self-attention [batch, tokens, width]."""
        q, k, v = self.qkv(x, *axes["qkv"]).unbind(3)
        if self.relative is None or index is None:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)
        else:
            out = self.relative(q, k, v, self.scale, index)
        out = axes["proj"][0].mask(out.flatten(2), self.head_dim)
        return self.proj(out, *axes["proj"])


def _branch(x: Tensor, shape: BlockShape, paths: Tensor | None) -> Tensor:
    """A branch's output with channels, rows and dropped paths that do not act set to zero."""
    x = shape.width.mask(x)
    if shape.acts is not None:
        x = x * shape.acts.to(x.dtype)
    return x if paths is None else x * paths[:, None, None].to(x.dtype)


class VitSupernet(Supernet):
    """A vision transformer of elastic patch size, width, depth, heads and MLP ratios.

    Raises:
        UserError: the space has an MLP without a hidden channel.
    """

    def __init__(self, space: Space):
        super().__init__(space)
        constants = space.constants
        width = int(max(space["width"].choices))
        depth = int(max(space["depth"].choices))
        for i in range(depth):
            if hidden_width(min(space["width"].choices), min(space[f"blocks.{i}.mlp_ratio"].choices)) < 1:
                raise UserError(f"space {space.name}: the smallest MLP of block {i} has no hidden channel")
        self.sharing = PATTERNS[constants.sharing]
        self.stem = Bank(
            space["patch_size"].choices,
            lambda patch: PatchStem(space.channels, space.input_size, patch, width, constants.class_token),
        )
        self.blocks = nn.ModuleList(
            Block(
                space,
                width,
                heads=int(max(space[f"blocks.{i}.heads"].choices)),
                hidden=hidden_width(width, max(space[f"blocks.{i}.mlp_ratio"].choices)),
            )
            for i in range(depth)
        )
        self.norm = ElasticNorm(width, constants.norm_eps)
        self.head = ElasticLinear(width, space.classes)
        self.relative: Bank | None = None
        if constants.relative_position is not None:
            self.relative = Bank(
                space["patch_size"].choices,
                lambda patch: RelativeIndex(
                    self.stem.of(patch).grid, constants.relative_position, constants.class_token, constants.head_dim
                ),
            )

    # -- shapes ----------------------------------------------------------------------------------------------------

    def shape(self, arch: Arch) -> Shape:
        """What acts for one arch.

        Raises:
            UserError: the supernet does not hold the arch.
        """
        width = self.sharing(int(arch["width"]), self.head.weight.shape[1])
        blocks = [
            BlockShape(
                width,
                self.sharing(int(arch[f"blocks.{i}.heads"]), self.block(i).qkv.heads),
                self.sharing(
                    hidden_width(arch["width"], arch[f"blocks.{i}.mlp_ratio"]), self.block(i).fc1.weight.shape[0]
                ),
            )
            for i in range(int(arch["depth"]))
        ]
        return Shape(int(arch["patch_size"]), width, blocks)

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> Shape:
        """What acts in each row of a mixed batch.

        Args:
            archs: archs that differ in what masks can express (see `unmaskable`).
            rows: [batch] int64, each row's arch.
        """
        width = Channels.first_of_each([int(arch["width"]) for arch in archs], rows)
        blocks = []
        for i in range(max(int(arch["depth"]) for arch in archs)):
            # A row that is too shallow for the block runs it with the widest shape and is then masked as a whole.
            deep = [i < arch["depth"] for arch in archs]
            heads = [int(arch.get(f"blocks.{i}.heads", 0)) for arch in archs]
            hidden = [hidden_width(arch["width"], arch.get(f"blocks.{i}.mlp_ratio", 0)) for arch in archs]
            blocks.append(
                BlockShape(
                    width,
                    Channels.first_of_each([count or max(heads) for count in heads], rows),
                    Channels.first_of_each([count or max(hidden) for count in hidden], rows),
                    None if all(deep) else torch.tensor(deep, device=rows.device)[rows][:, None, None],
                )
            )
        return Shape(int(archs[0]["patch_size"]), width, blocks)

    def block(self, index: int) -> Block:
        """One block.

        Raises:
            UserError: the supernet is not that deep.
        """
        if index >= len(self.blocks):
            raise UserError(f"the arch has more than the supernet's {len(self.blocks)} blocks")
        return cast(Block, self.blocks[index])

    # -- the network -----------------------------------------------------------------------------------------------

    def run(self, x: Tensor, shape: Shape, paths: Tensor | None) -> Tensor:
        """Images to logits [batch, classes]; the one forward pass behind every execution."""
        index = None if self.relative is None else self.relative.of(shape.patch_size)
        x = self.stem.of(shape.patch_size)(x, shape.width)
        for i, block in enumerate(shape.blocks):
            x = self.block(i)(x, block, None if paths is None else paths[i], index)
        x = self.norm(x, shape.width)
        constants = self.space.constants
        pooled = x[:, 0] if constants.pool == "token" else x[:, int(constants.class_token) :].mean(1)
        return self.head(pooled, shape.width, Channels.first(self.space.classes))

    def run_one(self, x: Tensor, arch: Arch, paths: Tensor | None) -> Tensor:
        """Logits of a batch that is all one arch's."""
        return self.run(x, self.shape(arch), paths)

    def run_masked(self, x: Tensor, archs: list[Arch], rows: Tensor, paths: Tensor | None) -> Tensor:
        """Logits of a mixed batch in one pass."""
        return self.run(x, self.shape_of_rows(archs, rows), paths)

    def draw_paths(self, x: Tensor, archs: Sequence[Arch]) -> Tensor | None:
        """[blocks, 2, batch]: 0 for a dropped branch, else 1 / (1 - rate); None where nothing is dropped.

        The rate rises linearly from 0 over the constant `drop_path_depth`, whatever the arch's depth. The draw depends
        on the batch size alone (unless an arch is deeper than the ramp), so that groups, masks and passes of one arch
        agree under the same random state.
        """
        if not self.training or self.drop_path == 0:
            return None
        if not 0 < self.drop_path < 1:
            raise UserError(f"drop_path must be in [0, 1), found {self.drop_path}")
        ramp = self.space.constants.drop_path_depth
        blocks = max(ramp, *(int(arch["depth"]) for arch in archs))
        steps = torch.arange(blocks, device=x.device).clamp(max=ramp - 1) / max(ramp - 1, 1)
        keep = (1 - self.drop_path * steps)[:, None, None]
        return (torch.rand(blocks, 2, len(x), device=x.device) < keep) / keep

    # -- parts -----------------------------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any]) -> dict[str, Tensor]:
        """The acting part of every parameter that an arch uses, by name: the subnet's state dict, as views."""
        shape = self.shape(self._arch(arch))
        parts = {
            "stem": self.stem.select(shape.patch_size, shape.width),
            **{f"blocks.{i}": self.block(i).select(block) for i, block in enumerate(shape.blocks)},
            "norm": self.norm.select(shape.width),
            "head": self.head.select(shape.width, Channels.first(self.space.classes)),
        }
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}

    def unmaskable(self, archs: Sequence[Arch]) -> list[str]:
        """The dimensions in which these archs differ and which masks cannot express: patch size has other tokens."""
        names = {name for arch in archs for name in arch}
        differ = {name for name in names if len({arch.get(name) for arch in archs}) > 1}
        return sorted(name for name in differ if not self.maskable(name))

    def maskable(self, dimension: str) -> bool:
        """Whether masks can express different values of a dimension within one batch."""
        return dimension != "patch_size" and self.space.constants.sharing in NESTED

    def prefers_masks(self, x: Tensor, archs: Sequence[Arch]) -> bool:
        """Masks for small work, groups for large (see `MASKS_BELOW`)."""
        tokens = self.stem.of(archs[0]["patch_size"]).position.shape[1]
        return len(x) / len(archs) * tokens < MASKS_BELOW

    def no_weight_decay(self) -> set[str]:
        """Class tokens and absolute positions; 1-D tensors (norms, biases) are the trainer's to exempt.

        AutoFormer's relative-position tables decay, as they do in its release.
        """
        return {name for name, _ in self.named_parameters() if name.endswith((".class_token", ".position"))}


MASKS_BELOW = 256
"""Tokens of one arch's rows below which a masked batch beats a grouped one.

Measured on one CPU thread, forward and backward, groups' time over masks'. Widths up to 64: 1.4 at 136 tokens, 0.7 at
544. Widths up to 240: 1.7 at 68, 1.3 at 130, 0.9 at 272, 1.0 at 394.
"""
