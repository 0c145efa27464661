"""Talking-heads attention with wide, convolved values and relative position."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.hybrid.space import HybridConstants
from raynas.nets.channels import Channels
from raynas.nets.layers import new_parameter, select_layers
from raynas.nets.windows import Windows

Grid = tuple[int, int]


class DefaultLinear(nn.Module):
    """An elastic linear layer with torch's initialisation, as in all of NASViT.

    Args:
        in_unit: inputs for each channel of the input axis.
        out_unit: outputs for each channel of the output axis.
    """

    def __init__(self, in_features: int, out_features: int, in_unit: int = 1, out_unit: int = 1):
        super().__init__()
        like = nn.Linear(in_features, out_features)
        self.weight, self.bias = like.weight, like.bias
        self.in_unit, self.out_unit = in_unit, out_unit

    def select(self, inputs: Channels, outputs: Channels) -> dict[str, Tensor]:
        weight = outputs.select(inputs.select(self.weight, 1, self.in_unit), 0, self.out_unit)
        return {"weight": weight, "bias": outputs.select(self.bias, 0, self.out_unit)}

    def forward(self, x: Tensor, inputs: Channels, outputs: Channels) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        return F.linear(x, **self.select(inputs, outputs))


class TokenConv(nn.Module):
    """A 3 x 3 depthwise convolution of tokens on their grid, without bias.

    Args:
        unit: channels of a unit: of a head's values, or 1.
    """

    def __init__(self, units: int, unit: int = 1):
        super().__init__()
        self.weight = nn.Conv2d(units * unit, units * unit, 3, groups=units * unit, bias=False).weight
        self.unit = unit

    def select(self, units: Channels, grid: Grid) -> dict[str, Tensor]:
        del grid
        return {"weight": units.select(self.weight, 0, self.unit)}

    def forward(self, x: Tensor, units: Channels, grid: Grid) -> Tensor:
        """Map [batch, tokens, units * unit] to the same shape."""
        weight = self.select(units, grid)["weight"]
        x = F.conv2d(x.transpose(1, 2).unflatten(2, grid), weight, padding=1, groups=units.count * self.unit)
        return x.flatten(2).transpose(1, 2)


class RelativeBias(nn.Module):
    """A bias on scores for each head and offset between query and key.

    Args:
        window: rows and columns of the largest window; a smaller one reads the middle of the table.
    """

    def __init__(self, window: Grid, heads: int):
        super().__init__()
        self.offsets = (2 * window[0] - 1, 2 * window[1] - 1)
        self.table = new_parameter(1, self.offsets[0] * self.offsets[1], heads)

    def select(self, heads: Channels, window: Grid) -> dict[str, Tensor]:
        """Return the active part of the parameters.

        Raises:
            UserError: the window is larger than the table's.
        """
        table = heads.select(self.table, 2).unflatten(1, self.offsets)
        for dim, (side, held) in enumerate(zip(window, self.offsets, strict=True), start=1):
            if 2 * side - 1 > held:
                raise UserError(f"the arch has windows of {side} tokens, the supernet's offsets reach {held // 2}")
            table = table.narrow(dim, (held - (2 * side - 1)) // 2, 2 * side - 1)
        return {"table": table.flatten(1, 2)}

    def forward(self, heads: Channels, window: Grid) -> Tensor:
        """Return one window's biases [heads, queries, keys], both row by row."""
        rows, columns = window
        table = self.select(heads, window)["table"].view(2 * rows - 1, 2 * columns - 1, -1)
        # Entry i of the slice that starts at s is table[s + i]: s is the query, i the key counted from the end.
        pairs = table.unfold(0, rows, 1).unfold(1, columns, 1).flip(3, 4)
        return pairs.permute(2, 0, 1, 3, 4).reshape(heads.count, rows * columns, rows * columns)


class Attention(nn.Module):
    """Multi-head attention inside windows of the grid (one window: global), then swish and a projection.

    Queries and keys have `head_dim` channels per head, values `value_ratio` times as many; values are convolved over
    the whole grid. Scores, including relative position, are mixed over heads before and after the softmax (talking
    heads, Shazeer et al., 2020).

    Args:
        window: rows and columns of the largest window.
    """

    def __init__(self, constants: HybridConstants, width: int, window: Grid):
        super().__init__()
        dim, wide, heads = constants.head_dim, constants.head_dim * constants.value_ratio, width // constants.head_dim
        assert constants.attention_scale is not None
        self.scale = constants.attention_scale
        self.q = DefaultLinear(width, heads * dim, out_unit=dim)
        self.k = DefaultLinear(width, heads * dim, out_unit=dim)
        self.v = DefaultLinear(width, heads * wide, out_unit=wide)
        self.conv = TokenConv(heads, wide)
        self.relative = RelativeBias(window, heads)
        self.before = DefaultLinear(heads, heads)
        self.behind = DefaultLinear(heads, heads)
        self.proj = DefaultLinear(heads * wide, width, in_unit=wide)

    def axes(self, width: Channels, heads: Channels, grid: Grid, window: Grid) -> dict[str, tuple[Any, ...]]:
        return {
            "q": (width, heads),
            "k": (width, heads),
            "v": (width, heads),
            "conv": (heads, grid),
            "relative": (heads, window),
            "before": (heads, heads),
            "behind": (heads, heads),
            "proj": (heads, width),
        }

    def select(self, width: Channels, heads: Channels, grid: Grid, window: Grid) -> dict[str, Tensor]:
        return select_layers(self, self.axes(width, heads, grid, window))

    def forward(self, x: Tensor, width: Channels, heads: Channels, grid: Grid, window: Grid) -> Tensor:
        """Map [batch, tokens, width] to the same shape."""
        axes, windows = self.axes(width, heads, grid, window), Windows(grid, window)
        v = self.conv(self.v(x, *axes["v"]), *axes["conv"])
        q, k, v = (
            windows.split(each).flatten(0, 1).unflatten(-1, (heads.count, -1)).transpose(1, 2)
            for each in (self.q(x, *axes["q"]), self.k(x, *axes["k"]), v)
        )
        scores = (q * self.scale) @ k.transpose(-2, -1) + self.relative(*axes["relative"])
        weights = self.mix(self.mix(scores, self.before, heads).softmax(-1), self.behind, heads)
        out = F.silu((weights @ v).transpose(1, 2).flatten(2))
        return self.proj(windows.join(out.unflatten(0, (-1, math.prod(windows.counts)))), *axes["proj"])

    @staticmethod
    def mix(scores: Tensor, layer: DefaultLinear, heads: Channels) -> Tensor:
        """Apply a linear layer over heads to [windows, heads, tokens, tokens]."""
        selected = layer.select(heads, heads)
        return F.conv2d(scores, selected["weight"][:, :, None, None], selected["bias"])
