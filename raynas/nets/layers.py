"""Elastic layers: ordinary layers whose active channels are arguments of each call.

Each has one `select(channels...)`, which returns the active part of the parameters by name, as views, and is used by
both its forward pass and extraction. Numbers of channels, units and heads that constructors take are the largest ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.masked_norm import masked_norm

INIT_STD = 0.02


def new_parameter(*shape: int) -> nn.Parameter:
    """Draw a parameter from a normal distribution of standard deviation 0.02, as in AutoFormer and DeiT."""
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(*shape), std=INIT_STD))


def new_kernel(out_channels: int, in_channels: int, side: int, fan_out: int) -> nn.Parameter:
    """Draw a convolution's weights [outputs, inputs, side, side] with variance 2 / fan-out, as in Twins."""
    return nn.Parameter(torch.empty(out_channels, in_channels, side, side).normal_(0, math.sqrt(2 / fan_out)))


class ElasticLinear(nn.Module):
    """A linear layer with elastic inputs and outputs.

    Args:
        in_unit: inputs for each channel of the input axis.
    """

    def __init__(self, in_features: int, out_features: int, in_unit: int = 1, bias: bool = True):
        super().__init__()
        self.weight = new_parameter(out_features, in_features)
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        self.in_unit = in_unit

    def select(self, inputs: Channels, outputs: Channels) -> dict[str, Tensor]:
        selected = {"weight": outputs.select(inputs.select(self.weight, 1, self.in_unit), 0)}
        if self.bias is not None:
            selected["bias"] = outputs.select(self.bias, 0)
        return selected

    def forward(self, x: Tensor, inputs: Channels, outputs: Channels) -> Tensor:
        """Map [..., inputs] to [..., outputs]; a row's inactive outputs are not masked here."""
        return F.linear(x, **self.select(inputs, outputs))


def select_layers(module: nn.Module, axes: Mapping[str, tuple[Any, ...]]) -> dict[str, Tensor]:
    """Return the active part of the parameters of a module's layers, by name.

    Args:
        axes: the arguments of each layer's `select`; a layer that is None has no parameters.
    """
    return {
        f"{layer}.{name}": tensor
        for layer, channels in axes.items()
        if getattr(module, layer) is not None
        for name, tensor in getattr(module, layer).select(*channels).items()
    }


def padded(x: Tensor, patch: int) -> Tensor:
    """Pad images [batch, channels, height, width] with zeros at the bottom and right, so that patches divide them.

    Modules that call it wrap it for torch.fx, because sizes are unknown in a trace.
    """
    below, right = (-side % patch for side in x.shape[2:])
    return F.pad(x, (0, right, 0, below)) if below or right else x


def in_order(x: Tensor, order: torch.memory_format) -> Tensor:
    """Return a tensor [batch, channels, height, width] in an order in memory if it is on a CPU, else as it is.

    Convolutions and batch norms keep the order of their input, whatever that of their weights is. Modules that call it
    wrap it for torch.fx, because the device is unknown in a trace.
    """
    return x.contiguous(memory_format=order) if x.device.type == "cpu" else x


torch.fx.wrap("padded")


class ElasticPatchConv(nn.Module):
    """A convolution over non-overlapping patches; images are padded with zeros at the bottom and right."""

    def __init__(self, in_channels: int, out_channels: int, patch: int):
        super().__init__()
        self.patch = patch
        self.weight = new_kernel(out_channels, in_channels, patch, fan_out=patch**2 * out_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def select(self, inputs: Channels, outputs: Channels) -> dict[str, Tensor]:
        return {"weight": outputs.select(inputs.select(self.weight, 1), 0), "bias": outputs.select(self.bias, 0)}

    def forward(self, x: Tensor, inputs: Channels, outputs: Channels) -> Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, patch rows, patch columns]."""
        selected = self.select(inputs, outputs)
        return F.conv2d(padded(x, self.patch), selected["weight"], selected["bias"], stride=self.patch)


class ElasticConv(nn.Module):
    """A convolution with elastic inputs and outputs and torch's initialisation.

    Args:
        padding: number of zeros beyond each border.
    """

    def __init__(
        self, in_channels: int, out_channels: int, side: int, stride: int = 1, padding: int = 0, bias: bool = True
    ):
        super().__init__()
        like = nn.Conv2d(in_channels, out_channels, side, bias=bias)
        self.weight, self.bias = like.weight, like.bias
        self.stride, self.padding = stride, padding

    def select(self, inputs: Channels, outputs: Channels) -> dict[str, Tensor]:
        selected = {"weight": outputs.select(inputs.select(self.weight, 1), 0)}
        return selected if self.bias is None else {**selected, "bias": outputs.select(self.bias, 0)}

    def forward(self, x: Tensor, inputs: Channels, outputs: Channels) -> Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, rows, columns]; outputs are not masked here."""
        selected = self.select(inputs, outputs)
        return F.conv2d(x, selected["weight"], selected.get("bias"), self.stride, self.padding)


class ElasticDepthwiseConv(nn.Module):
    """A 3 x 3 depthwise convolution, padded with zeros."""

    def __init__(self, channels: int):
        super().__init__()
        self.weight = new_kernel(channels, 1, 3, fan_out=9)
        self.bias = nn.Parameter(torch.zeros(channels))

    def select(self, width: Channels) -> dict[str, Tensor]:
        return {"weight": width.select(self.weight, 0), "bias": width.select(self.bias, 0)}

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        """Map [batch, width, rows, columns] to the same shape."""
        selected = self.select(width)
        return F.conv2d(x, selected["weight"], selected["bias"], padding=1, groups=width.count)


class ElasticNorm(nn.Module):
    """Layer normalisation over the active channels."""

    def __init__(self, features: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def select(self, width: Channels) -> dict[str, Tensor]:
        return {"weight": width.select(self.weight, 0), "bias": width.select(self.bias, 0)}

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        """Normalise [batch, tokens, width]; with row masks, inactive channels must be zero in x and stay zero."""
        if width.rows is None:
            return F.layer_norm(x, (width.count,), **self.select(width), eps=self.eps)
        return masked_norm(x, width, self.eps, **self.select(width))


class Through(nn.Identity):
    """A layer without parameters that returns its input, in place of one that was removed."""

    def select(self, *channels: Any) -> dict[str, Tensor]:
        """Return no parameters."""
        return {}

    def forward(self, x: Tensor, *channels: Any) -> Tensor:
        """Return the input."""
        return x


class LayerScale(nn.Module):
    """A learnt factor on each channel of a branch (CaiT), under timm's name."""

    def __init__(self, features: int, initial: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((features,), initial))

    def select(self, width: Channels) -> dict[str, Tensor]:
        return {"gamma": width.select(self.gamma, 0)}

    def forward(self, x: Tensor, width: Channels) -> Tensor:
        """Multiply [batch, tokens, width]; a row's inactive channels are not masked here."""
        return x * width.select(self.gamma, 0)


class Bank(nn.ModuleDict):
    """Private parameters: a separate module for each choice of a dimension (or of several, as a tuple)."""

    def __init__(self, choices: Iterable[Any], make: Callable[[Any], nn.Module]):
        super().__init__({self._key(choice): make(choice) for choice in choices})

    @staticmethod
    def _key(choice: Any) -> str:
        parts = choice if isinstance(choice, tuple) else (choice,)
        return "_".join(str(part).replace(".", "p") for part in parts)

    def of(self, choice: Any) -> Any:
        """Return the module of a choice.

        Raises:
            UserError: there is none.
        """
        if self._key(choice) not in self:
            raise UserError(
                f"the arch chooses {choice}, for which the supernet has no parameters (it has {list(self)})"
            )
        return self[self._key(choice)]

    def select(self, choice: Any, *channels: Any) -> dict[str, Tensor]:
        """Return the active part of a choice's parameters; `channels` are its module's arguments."""
        return {f"{self._key(choice)}.{name}": tensor for name, tensor in self.of(choice).select(*channels).items()}


class PatchStem(nn.Module):
    """Image to tokens for one patch size: projection, class tokens and absolute positions.

    An image that the patch does not divide is padded with zeros at the bottom and right.

    Args:
        size: image height and width in pixels.
        class_tokens: number of tokens before the patches: a class token, and a distillation token behind it.
        private: True if the stem has its own class tokens, False if they are passed to `forward`.
        late: True if they join the patches later (CaiT): they get no positions, and `forward` leaves them out.
    """

    def __init__(
        self,
        channels: int,
        size: tuple[int, int],
        patch: int,
        width: int,
        class_tokens: int,
        private: bool = True,
        late: bool = False,
    ):
        super().__init__()
        self.patch = patch
        self.grid = (math.ceil(size[0] / patch), math.ceil(size[1] / patch))
        self.padding = (0, self.grid[1] * patch - size[1], 0, self.grid[0] * patch - size[0])
        self.proj = nn.Conv2d(channels, width, patch, patch)
        self.late = late
        self.class_token = new_parameter(1, class_tokens, width) if class_tokens and private else None
        self.position = new_parameter(1, class_tokens * (not late) + self.grid[0] * self.grid[1], width)

    def select(self, width: Channels) -> dict[str, Tensor]:
        selected = {"proj.weight": width.select(self.proj.weight, 0), "position": width.select(self.position, 2)}
        if self.proj.bias is not None:
            selected["proj.bias"] = width.select(self.proj.bias, 0)
        if self.class_token is not None:
            selected["class_token"] = width.select(self.class_token, 2)
        return selected

    def forward(self, images: Tensor, width: Channels, class_token: Tensor | None = None) -> Tensor:
        """Map [batch, channels, height, width] to [batch, tokens, width], the class tokens first.

        Args:
            class_token: [1, class tokens, width], if the stem has none of its own.
        """
        selected = self.select(width)
        images = F.pad(images, self.padding) if any(self.padding) else images
        x = F.conv2d(images, selected["proj.weight"], selected["proj.bias"], stride=self.patch)
        x = x.flatten(2).transpose(1, 2)
        token = selected.get("class_token", class_token)
        if token is not None and not self.late:
            x = torch.cat([token.expand(x.shape[0], -1, -1).to(x.dtype), x], dim=1)
        return width.mask(x + selected["position"])


def resize_positions(table: Tensor, before: tuple[int, int], after: tuple[int, int]) -> Tensor:
    """Resize a table of position embeddings bicubically, as the releases of ViT-ResNAS and DeiT do.

    Args:
        table: [1, others + rows * columns, width]; the rows in front, such as a class token's, stay unchanged.
        before: rows and columns of the table's grid.
        after: rows and columns of the new grid.

    Returns:
        [1, others + rows * columns, width].
    """
    if before == after:
        return table
    others, grid = table.split([table.shape[1] - math.prod(before), math.prod(before)], dim=1)
    image = grid.transpose(1, 2).unflatten(2, before)
    image = F.interpolate(image, size=after, mode="bicubic", align_corners=False)
    return torch.cat([others, image.flatten(2).transpose(1, 2)], dim=1)
