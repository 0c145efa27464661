"""The transformer block: talking-heads attention, then two MLPs, each branch scaled by a row of factors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.hybrid.attention import Attention, DefaultLinear, TokenConv
from raynas.families.hybrid.space import HybridConstants
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticNorm, select_layers

SCALING_KEYS = 8
"""Modulus of the number of tokens in the rows' keys; the release also multiplies factors by it over the width."""

SCALING_START = 1e-4


@dataclass(frozen=True, eq=False)
class HybridBlockShape:
    """Active channels of one block.

    Attributes:
        hidden: hidden channels of the two MLPs.
        grid: rows and columns of the tokens.
        window: rows and columns of one window.
        row: key of the factors' row (see `HybridConstants.scaling`).
    """

    width: Channels
    heads: Channels
    hidden: tuple[Channels, Channels]
    grid: tuple[int, int]
    window: tuple[int, int]
    row: tuple[int, ...]


class ScalingTable(nn.Module):
    """Factors for each channel, one row for each key ("switchable scaling", section 4.3).

    Args:
        keys: the values of each part of the key.
        per_width: multiply every factor by 8 / width, as the release does.
    """

    def __init__(self, keys: Iterable[Iterable[int]], width: int, per_width: bool):
        super().__init__()
        self.keys = [list(values) for values in keys]
        self.weight = nn.Parameter(torch.full((*(len(values) for values in self.keys), width), SCALING_START))
        self.per_width = per_width

    def select(self, row: tuple[int, ...], width: Channels) -> dict[str, Tensor]:
        """Return the active row, as a table of one row.

        Raises:
            UserError: there is no row for that key.
        """
        selected = width.select(self.weight, len(row))
        for dim, (key, values) in enumerate(zip(row, self.keys, strict=True)):
            if key not in values:
                raise UserError(f"the arch needs the factors of {key}, the supernet has those of {values}")
            selected = selected.narrow(dim, values.index(key), 1)
        return {"weight": selected}

    def forward(self, x: Tensor, row: tuple[int, ...], width: Channels) -> Tensor:
        """Multiply each channel of [batch, tokens, width] by its factor."""
        factors = self.select(row, width)["weight"].flatten()
        return x * (factors * (SCALING_KEYS / width.count) if self.per_width else factors)


class BlockNorm(ElasticNorm):
    """Layer normalisation over each token, or over an image's tokens and channels together, as released."""

    def __init__(self, features: int, constants: HybridConstants):
        super().__init__(features, constants.norm_eps)
        self.joint = constants.norm == "image"

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        if not self.joint:
            return super().forward(x, width)
        selected = self.select(width)
        return torch.addcmul(selected["bias"], F.layer_norm(x, x.shape[1:], eps=self.eps), selected["weight"])


class Mlp(nn.Module):
    """Two linear layers with swish between them; `convolves` adds a convolution of the hidden channels before it."""

    def __init__(self, width: int, hidden: int, convolves: bool):
        super().__init__()
        self.fc1 = DefaultLinear(width, hidden)
        self.conv = TokenConv(hidden) if convolves else None
        self.fc2 = DefaultLinear(hidden, width)

    def select(self, width: Channels, hidden: Channels, grid: tuple[int, int]) -> dict[str, Tensor]:
        return select_layers(self, {"fc1": (width, hidden), "conv": (hidden, grid), "fc2": (hidden, width)})

    def forward(self, x: Tensor, width: Channels, hidden: Channels, grid: tuple[int, int]) -> Tensor:
        """Map [batch, tokens, width] to the same shape."""
        x = self.fc1(x, width, hidden)
        x = x if self.conv is None else self.conv(x, hidden, grid)
        return self.fc2(F.silu(x), hidden, width)


class TransformerBlock(nn.Module):
    """Pre-norm attention and two MLPs, each scaled and added to the residual stream.

    Args:
        relative: rows and columns of the largest window.
        keys: keys of the rows of factors, part by part.
    """

    def __init__(
        self,
        constants: HybridConstants,
        width: int,
        hidden: int,
        relative: tuple[int, int],
        keys: list[list[int]],
    ):
        super().__init__()

        def table() -> ScalingTable | None:
            """Build a table: one for attention, one for both MLPs."""
            if constants.scaling == "none":
                return None
            return ScalingTable(keys, width, per_width=constants.scaling == "depth_tokens")

        self.norm1 = BlockNorm(width, constants)
        self.attention = Attention(constants, width, relative)
        self.norm2 = BlockNorm(width, constants)
        self.mlp1 = Mlp(width, hidden, constants.mlp_conv)
        self.norm3 = BlockNorm(width, constants)
        self.mlp2 = Mlp(width, hidden, constants.mlp_conv)
        self.attention_scaling = table()
        self.mlp_scaling = table()

    def axes(self, shape: HybridBlockShape) -> dict[str, tuple[Any, ...]]:
        width = (shape.width,)
        mlp1, mlp2 = ((shape.width, hidden, shape.grid) for hidden in shape.hidden)
        return {
            "norm1": width,
            "attention": (shape.width, shape.heads, shape.grid, shape.window),
            "norm2": width,
            "mlp1": mlp1,
            "norm3": width,
            "mlp2": mlp2,
            "attention_scaling": (shape.row, shape.width),
            "mlp_scaling": (shape.row, shape.width),
        }

    def select(self, shape: HybridBlockShape) -> dict[str, Tensor]:
        return select_layers(self, self.axes(shape))

    def forward(self, x: Tensor, shape: HybridBlockShape, paths: Tensor | None) -> Tensor:
        """Run the block on [batch, width, rows, columns].

        Args:
            paths: [3, batch], factors on each row's three branches; None for 1.
        """
        axes, x = self.axes(shape), x.flatten(2).transpose(1, 2)
        branches = (
            ("norm1", "attention", "attention_scaling"),
            ("norm2", "mlp1", "mlp_scaling"),
            ("norm3", "mlp2", "mlp_scaling"),
        )
        for index, layers in enumerate(branches):
            branch = x
            for name in layers:
                layer = getattr(self, name)
                branch = branch if layer is None else layer(branch, *axes[name])
            branch = branch if paths is None else branch * paths[index, :, None, None].to(branch.dtype)
            x = x + branch
        return x.transpose(1, 2).unflatten(2, shape.grid)
