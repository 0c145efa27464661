"""The block of S3 networks: attention inside windows with a table of biases, and an MLP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.s3.space import fitted
from raynas.nets.block import Block, BlockShape
from raynas.nets.channels import Channels
from raynas.nets.layers import new_parameter
from raynas.nets.windows import Windows


@dataclass(frozen=True, eq=False, kw_only=True)
class WindowShape(BlockShape):
    """Active channels and windows of one block.

    Attributes:
        table: the heads of the table of biases.
    """

    table: Channels
    windows: Windows


def windows_of(grid: tuple[int, int], sides: tuple[int, int], shifted: bool) -> Windows:
    """Return the windows of a block, clipped to the grid; an axis covered by one window is not shifted.

    Args:
        sides: rows and columns of a window; see `window_sides`.
    """
    pairs = [(int(window), side) for window, side in zip(sides, grid, strict=True)]
    rows, columns = (int(fitted(window, side)) for window, side in pairs)
    down, right = (window // 2 if shifted and side > window else 0 for window, side in pairs)
    return Windows(grid, (rows, columns), (down, right))


class RelativeBias(nn.Module):
    """A bias for each head and offset between query and key, in rows and columns (Liu et al., 2021, Eq. 4).

    Windows share the entries of common offsets: a smaller window takes the centre of the table. So an entry means the
    same distance in tokens for every window, and a window's entries are a slice.

    Args:
        window: rows and columns of the largest window.
    """

    def __init__(self, heads: int, window: tuple[int, int]):
        super().__init__()
        self.window = window
        self.table = new_parameter(heads, 2 * window[0] - 1, 2 * window[1] - 1)

    def select(self, heads: Channels, window: tuple[int, int]) -> dict[str, Tensor]:
        """Return the active part of the parameters.

        Raises:
            UserError: the window is larger than the supernet's largest.
        """
        table = heads.select(self.table, 0)
        for axis, (side, largest) in enumerate(zip(window, self.window, strict=True), start=1):
            margin = largest - side
            if margin < 0:
                raise UserError(f"the arch needs a window of {side} tokens, but the supernet has at most {largest}")
            table = table.narrow(axis, margin, 2 * side - 1)
        return {"table": table}

    def forward(self, heads: Channels, window: tuple[int, int]) -> Tensor:
        """Return one window's biases [heads, queries, keys], both row by row."""
        table = self.select(heads, window)["table"]
        # Before the flip, entry [query row, query column, r, c] is for the key r rows and c columns before the last.
        pairs = table.unfold(1, window[0], 1).unfold(2, window[1], 1).flip(3, 4)
        return pairs.flatten(3).flatten(1, 2)


def without_strangers(bias: Tensor, windows: Windows) -> Tensor:
    """Repeat biases [heads, queries, keys] for each window, [windows * heads, queries, keys]; -inf for strangers."""
    strangers = windows.strangers(bias.device)
    assert strangers is not None
    return bias.masked_fill(strangers[:, None], -torch.inf).flatten(0, 1)


torch.fx.wrap("without_strangers")


def resize_bias(table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """Resize a table of biases to another window: offsets keep their entries, new offsets take the nearest entry.

    Args:
        table: [heads, 2 * rows - 1, 2 * columns - 1].
        before: rows and columns of the table's window.
        after: rows and columns of the new window.
    """
    for axis, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        offsets = torch.arange(1 - new, new, device=table.device).clamp(1 - old, old - 1)
        table = table.index_select(axis, offsets + old - 1)
    return table


class WindowBlock(Block):
    """Pre-norm attention inside windows and MLP, each added to the residual stream.

    Args:
        block: the arguments of `Block`.
    """

    def __init__(self, bias: RelativeBias, *block: Any):
        super().__init__(*block)
        self.bias = bias

    def axes(self, shape: BlockShape) -> dict[str, tuple[Any, ...]]:
        assert isinstance(shape, WindowShape)
        return {**super().axes(shape), "bias": (shape.table, shape.windows.window)}

    def attend(self, x: Tensor, shape: BlockShape, index: object = None) -> Tensor:
        """Return multi-head self-attention [batch, tokens, width] inside each window, without attending to padding."""
        assert isinstance(shape, WindowShape)
        axes, windows = self.axes(shape), shape.windows
        # Tokens are projected before they are split into windows, so that padding costs nothing and has no biases.
        qkv = windows.split(self.qkv(x, *axes["qkv"]).flatten(2)).unflatten(3, (shape.heads, 3, -1))
        bias = self.bias(*axes["bias"]).to(qkv.dtype)
        if windows.mixed:
            bias = without_strangers(bias, windows)
        # [batch, windows, heads, tokens, channels]: if windows' biases differ, windows are merged with heads for the
        # kernel, so that biases are not repeated for every image; else with images.
        merged = (1, 2) if windows.mixed else (0, 1)
        q, k, v = qkv.unbind(4)
        q, k, v = (part.transpose(2, 3).flatten(*merged) for part in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=self.scale)
        parts = (1, (-1, shape.heads)) if windows.mixed else (0, (-1, math.prod(windows.counts)))
        out = out.unflatten(*parts).transpose(2, 3).flatten(3)
        out = axes["proj"][0].mask(windows.join(out), self.unit)
        return self.proj(out, *axes["proj"])
