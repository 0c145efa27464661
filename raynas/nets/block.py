"""The transformer block common to families: pre-norm attention and MLP, sliced or masked row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear, ElasticNorm, LayerScale, select_layers
from raynas.nets.qkv import ElasticQkv, SplitQkv


@dataclass(frozen=True, eq=False)
class BlockShape:
    """Active channels of one block.

    Attributes:
        query: the query axis, in heads if their width is fixed, else in channels.
        heads: number of attention heads (the most of any row).
        acts: [batch, 1, 1] bool, True for rows that run the block; None for all.
    """

    width: Channels
    query: Channels
    heads: int
    hidden: Channels
    acts: Tensor | None = None

    @classmethod
    def of_rows(cls, width: Channels, values: Sequence[tuple[int, int, int] | None], rows: Tensor) -> BlockShape:
        """Return the shape for the rows of a mixed batch.

        Args:
            values: each arch's heads, query and hidden widths; None if it does not run the block.
            rows: [batch] int64, each row's arch.
        """
        # Rows that skip the block run it with the widest shape and are then masked as a whole.
        acts = [value is not None for value in values]
        most = tuple(max(column) for column in zip(*(value for value in values if value is not None), strict=True))
        each = [most if value is None else value for value in values]
        return cls(
            width,
            Channels.first_of_each([query for _, query, _ in each], rows),
            most[0],
            Channels.first_of_each([hidden for _, _, hidden in each], rows),
            None if all(acts) else torch.tensor(acts, device=rows.device)[rows][:, None, None],
        )


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream.

    Args:
        unit: channels of a unit of the query axis.
        scale: factor on the raw scores; None for one over the square root of a head's channels.
        relative: attention in place of the plain one, `relative(q, k, v, scale, index)`, whose parameters do not
            depend on choices.
        layer_scale: initial value of a learnt factor on each channel of both branches; None for none.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        qkv: ElasticQkv | SplitQkv,
        unit: int,
        scale: float | None,
        eps: float,
        relative: nn.Module | None = None,
        layer_scale: float | None = None,
    ):
        super().__init__()
        self.scale = scale
        self.unit = unit
        self.norm1 = ElasticNorm(width, eps)
        self.qkv = qkv
        self.relative = relative
        self.proj = ElasticLinear(qkv.heads * unit, width, in_unit=unit)
        self.norm2 = ElasticNorm(width, eps)
        self.fc1 = ElasticLinear(width, hidden)
        self.fc2 = ElasticLinear(hidden, width)
        self.ls1, self.ls2 = (None if layer_scale is None else LayerScale(width, layer_scale) for _ in range(2))

    def axes(self, shape: BlockShape) -> dict[str, tuple[Any, ...]]:
        width, query, hidden = shape.width, shape.query, shape.hidden
        return {
            "norm1": (width,),
            "qkv": (width, query, shape.heads),
            "relative": (),
            "proj": (query, width),
            "norm2": (width,),
            "fc1": (width, hidden),
            "fc2": (hidden, width),
            "ls1": (width,),
            "ls2": (width,),
        }

    def select(self, shape: BlockShape) -> dict[str, Tensor]:
        return select_layers(self, self.axes(shape))

    def forward(self, x: Tensor, shape: BlockShape, paths: Tensor | None, index: nn.Module | None = None) -> Tensor:
        """Run the block on tokens [batch, tokens, width].

        Args:
            paths: [2, batch], factors on each row's two branches; None for 1.
            index: given to `relative`, for the grid.
        """
        axes = self.axes(shape)
        attended = self.attend(self.norm1(x, *axes["norm1"]), shape, index)
        attended = attended if self.ls1 is None else self.ls1(attended, shape.width)
        x = _added(x, attended, shape, None if paths is None else paths[0])
        hidden = F.gelu(self.fc1(self.norm2(x, *axes["norm2"]), *axes["fc1"]))
        hidden = shape.hidden.mask(hidden, inplace=True)  # gelu's gradient does not need its output
        hidden = self.fc2(hidden, *axes["fc2"])
        hidden = hidden if self.ls2 is None else self.ls2(hidden, shape.width)
        return _added(x, hidden, shape, None if paths is None else paths[1])

    def attend(self, x: Tensor, shape: BlockShape, index: nn.Module | None) -> Tensor:
        """Return multi-head self-attention [batch, tokens, width]."""
        axes = self.axes(shape)
        q, k, v = self.qkv(x, *axes["qkv"]).unbind(3)
        if self.relative is None or index is None:
            q, k, v = (part.transpose(1, 2) for part in (q, k, v))
            out = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)
        else:
            assert self.scale is not None
            out = self.relative(q, k, v, self.scale, index)
        out = axes["proj"][0].mask(out.flatten(2), self.unit)
        return self.proj(out, *axes["proj"])


def _added(x: Tensor, branch: Tensor, shape: BlockShape, paths: Tensor | None) -> Tensor:
    """Add a branch to the residual stream, without its inactive channels, inactive rows and dropped paths.

    All factors are combined first, so that there is one pass over the tokens.
    """
    factors = [] if shape.width.rows is None else [shape.width.rows.mask]
    factors += [] if shape.acts is None else [shape.acts]
    factors += [] if paths is None else [paths[:, None, None]]
    if not factors:
        return x + branch
    factor = factors[0].to(branch.dtype)
    for more in factors[1:]:
        factor = factor * more.to(branch.dtype)
    return torch.addcmul(x, branch, factor)
