"""Local attention inside windows and global attention to a sub-sampled grid (Chu et al., 2021, section 3.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.twins.space import TwinsConstants
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear, ElasticNorm, ElasticPatchConv, select_layers
from raynas.nets.qkv import SplitQkv
from raynas.nets.windows import Windows


@dataclass(frozen=True, eq=False)
class AttentionShape:
    """Active channels of a block's attention.

    Attributes:
        query: the query axis, in heads if their width is fixed, else in channels of each of query, key and value.
        heads: number of heads that divide the selected query channels, in their order.
    """

    width: Channels
    query: Channels
    heads: int


class Attention(nn.Module):
    """Base of both kinds of attention, each with its own projections.

    Args:
        grid: rows and columns of the stage's tokens.
        query: units of the query axis.
    """

    def __init__(
        self, constants: TwinsConstants, grid: tuple[int, int], width: int, query: int, heads: tuple[int, ...]
    ):
        super().__init__()
        self.grid = grid
        self.scale = constants.attention_scale
        private, unit = constants.private_heads.replace("none", ""), constants.head_dim or 1
        self.qkv = SplitQkv(width, query, unit, bias=True, private=private, heads=heads)
        self.proj = ElasticLinear(query * unit, width, in_unit=unit)

    def axes(self, shape: AttentionShape) -> dict[str, tuple[Any, ...]]:
        return {"qkv": (shape.width, shape.query, shape.heads), "proj": (shape.query, shape.width)}

    def select(self, shape: AttentionShape) -> dict[str, Tensor]:
        return select_layers(self, self.axes(shape))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return attention [batch, queries, query] of q to k and v, [batch, queries or keys, heads, channels] each."""
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2).flatten(2)


class LocalAttention(Attention):
    """Attention of each token to the tokens of its window.

    A grid that the window does not divide is padded at the bottom and right with zero tokens, which are projected and
    attended to like other tokens, as in the release.
    """

    def __init__(
        self, constants: TwinsConstants, grid: tuple[int, int], width: int, query: int, heads: tuple[int, ...]
    ):
        super().__init__(constants, grid, width, query, heads)
        self.windows = Windows(grid, (constants.window, constants.window))

    def forward(self, x: Tensor, shape: AttentionShape) -> Tensor:
        """Map [batch, tokens, width] to the same shape."""
        axes = self.axes(shape)
        x = self.windows.split(x)
        windows = x.shape[1]
        q, k, v = self.qkv(x.flatten(0, 1), *axes["qkv"]).unbind(3)
        x = self.attend(q, k, v)
        return self.proj(self.windows.join(x.unflatten(0, (-1, windows))), *axes["proj"])


class GlobalAttention(Attention):
    """Attention of each token to a coarser grid: squares of tokens reduced by a convolution and a norm.

    Squares at the border are padded with zeros, so that every token is used.

    Args:
        reduction: side of the square; at 1, tokens attend to tokens.
    """

    def __init__(
        self,
        constants: TwinsConstants,
        grid: tuple[int, int],
        width: int,
        query: int,
        heads: tuple[int, ...],
        reduction: int,
    ):
        super().__init__(constants, grid, width, query, heads)
        self.reduction = ElasticPatchConv(width, width, reduction) if reduction > 1 else None
        self.norm = ElasticNorm(width, constants.embedding_norm_eps) if reduction > 1 else None

    def axes(self, shape: AttentionShape) -> dict[str, tuple[Any, ...]]:
        return {**super().axes(shape), "reduction": (shape.width, shape.width), "norm": (shape.width,)}

    def forward(self, x: Tensor, shape: AttentionShape) -> Tensor:
        """Map [batch, tokens, width] to the same shape."""
        axes = self.axes(shape)
        keys = x
        if self.reduction is not None and self.norm is not None:
            keys = self.reduction(x.transpose(1, 2).unflatten(2, self.grid), *axes["reduction"])
            keys = self.norm(keys.flatten(2).transpose(1, 2), *axes["norm"])
        weight, bias = self.qkv.weights(*axes["qkv"])
        assert bias is not None
        q = F.linear(x, weight[0], bias[0]).unflatten(-1, (shape.heads, -1))
        k, v = (
            F.linear(keys, weight[1:].flatten(0, 1), bias[1:].flatten()).unflatten(-1, (2, shape.heads, -1)).unbind(2)
        )
        return self.proj(self.attend(q, k, v), *axes["proj"])
