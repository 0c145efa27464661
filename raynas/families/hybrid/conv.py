"""Convolutional layers: convolutions with batch norm, squeeze-and-excitation, and the inverted residual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.batch_norm import ElasticBatchNorm
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticConv, select_layers


def halved(x: Tensor) -> Tensor:
    """Average squares of 2 x 2 pixels of [batch, channels, height, width]; odd sides are padded with zeros on both."""
    return F.avg_pool2d(x, 2, padding=(x.shape[2] % 2, x.shape[3] % 2))


torch.fx.wrap("halved")  # opaque to torch.fx, because sizes are unknown in a trace


@dataclass(frozen=True, eq=False)
class ConvShape:
    """Active channels of one inverted residual.

    Attributes:
        hidden: hidden channels; the inputs if there is no expanding convolution.
        squeezed: hidden channels of squeeze-and-excitation.
        kernel: side of the depthwise kernel.
    """

    inputs: Channels
    hidden: Channels
    squeezed: Channels
    width: Channels
    kernel: int


class NormedConv(nn.Module):
    """A convolution without bias, and batch normalisation.

    Args:
        side: side of the kernel; zero padding keeps the grid at stride 1.
    """

    def __init__(self, in_channels: int, out_channels: int, side: int = 1, stride: int = 1):
        super().__init__()
        self.conv = ElasticConv(in_channels, out_channels, side, stride, padding=side // 2, bias=False)
        self.norm = ElasticBatchNorm(out_channels)

    def select(self, inputs: Channels, outputs: Channels) -> dict[str, Tensor]:
        return select_layers(self, {"conv": (inputs, outputs), "norm": (outputs,)})

    def forward(self, x: Tensor, inputs: Channels, outputs: Channels) -> Tensor:
        """Map [batch, inputs, height, width] to [batch, outputs, rows, columns]."""
        return self.norm(self.conv(x, inputs, outputs), outputs)


class NormedDepthwise(nn.Module):
    """A depthwise convolution of elastic kernel, without bias, and batch normalisation.

    A smaller kernel is the centre of the larger one.

    Args:
        side: side of the largest kernel.
    """

    def __init__(self, channels: int, side: int, stride: int):
        super().__init__()
        self.weight = nn.Conv2d(channels, channels, side, groups=channels, bias=False).weight
        self.norm = ElasticBatchNorm(channels)
        self.side, self.stride = side, stride

    def select(self, width: Channels, kernel: int) -> dict[str, Tensor]:
        start = (self.side - kernel) // 2
        if start < 0:
            raise UserError(f"the arch has a kernel of {kernel}, the supernet one of {self.side}")
        weight = width.select(self.weight, 0).narrow(2, start, kernel).narrow(3, start, kernel)
        return {"weight": weight, **select_layers(self, {"norm": (width,)})}

    def forward(self, x: Tensor, width: Channels, kernel: int) -> Tensor:
        """Map [batch, width, height, width] to [batch, width, rows, columns]."""
        weight = self.select(width, kernel)["weight"]
        return self.norm(F.conv2d(x, weight, None, self.stride, kernel // 2, groups=width.count), width)


class SqueezeExcitation(nn.Module):
    """Squeeze-and-excitation with a hard sigmoid: channel gates from the channels' means (Hu et al., 2018)."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.reduce = ElasticConv(channels, squeezed, side=1)
        self.expand = ElasticConv(squeezed, channels, side=1)

    def select(self, width: Channels, squeezed: Channels) -> dict[str, Tensor]:
        return select_layers(self, {"reduce": (width, squeezed), "expand": (squeezed, width)})

    def forward(self, x: Tensor, width: Channels, squeezed: Channels) -> Tensor:
        """Map [batch, width, rows, columns] to the same shape."""
        gate = F.relu(self.reduce(x.mean((2, 3), keepdim=True), width, squeezed))
        return x * F.hardsigmoid(self.expand(gate, squeezed, width))


class InvertedResidual(nn.Module):
    """An inverted residual: expansion, depthwise convolution, gate and projection, always with a shortcut.

    The shortcut is the input. At stride 2 it is averaged over 2 x 2 places, with zero padding that counts at an odd
    side. If the widths differ, a convolution follows. The last batch norm's weights start at 0, so that a new layer
    equals its shortcut.

    Args:
        squeezed: largest squeezed width of squeeze-and-excitation; 0 for none.
        kernel: side of the largest depthwise kernel.
        stride: stride of the depthwise convolution, 1 or 2.
        expands: True for an expanding convolution.
        changes: True if input and output widths differ in some arch, so that the shortcut needs a convolution.
    """

    def __init__(
        self,
        inputs: int,
        hidden: int,
        squeezed: int,
        width: int,
        kernel: int,
        stride: int,
        expands: bool,
        changes: bool,
    ):
        super().__init__()
        self.stride = stride
        self.expand = NormedConv(inputs, hidden) if expands else None
        self.depthwise = NormedDepthwise(hidden, kernel, stride)
        self.squeeze = SqueezeExcitation(hidden, squeezed) if squeezed else None
        self.project = NormedConv(hidden, width)
        self.shortcut = ElasticConv(inputs, width, side=1, bias=False) if changes else None
        nn.init.zeros_(self.project.norm.weight)

    def axes(self, shape: ConvShape) -> dict[str, tuple[Any, ...]]:
        """Return the channels of each layer's axes.

        Raises:
            UserError: the arch changes the width, and the supernet's shortcut cannot.
        """
        axes: dict[str, tuple[Any, ...]] = {
            "expand": (shape.inputs, shape.hidden),
            "depthwise": (shape.hidden, shape.kernel),
            "squeeze": (shape.hidden, shape.squeezed),
            "project": (shape.hidden, shape.width),
        }
        if shape.inputs.count != shape.width.count:
            if self.shortcut is None:
                change = f"{shape.inputs.count} to {shape.width.count}"
                raise UserError(f"the arch goes from {change} channels where the supernet keeps their number")
            axes["shortcut"] = (shape.inputs, shape.width)
        return axes

    def select(self, shape: ConvShape) -> dict[str, Tensor]:
        return select_layers(self, self.axes(shape))

    def forward(self, x: Tensor, shape: ConvShape, paths: Tensor | None) -> Tensor:
        """Map [batch, inputs, height, width] to [batch, width, rows, columns].

        Args:
            paths: [3, batch]; its first row holds the factors on each image's branch; None for 1.
        """
        axes = self.axes(shape)
        branch = x if self.expand is None else F.silu(self.expand(x, *axes["expand"]))
        branch = F.silu(self.depthwise(branch, *axes["depthwise"]))
        branch = branch if self.squeeze is None else self.squeeze(branch, *axes["squeeze"])
        branch = self.project(branch, *axes["project"])
        if paths is not None:
            branch = branch * paths[0, :, None, None, None].to(branch.dtype)
        return self.around(x, axes) + branch

    def around(self, x: Tensor, axes: Mapping[str, tuple[Any, ...]]) -> Tensor:
        """Return the shortcut."""
        if self.stride == 2:
            x = halved(x)
        return x if self.shortcut is None or "shortcut" not in axes else self.shortcut(x, *axes["shortcut"])
