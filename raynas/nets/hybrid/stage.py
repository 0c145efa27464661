"""A stage of the hybrid supernet, and what acts in it for an arch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.hybrid.conv import ConvShape, InvertedResidual
from raynas.nets.hybrid.transformer import SCALING_KEYS, BlockShape, TransformerBlock
from raynas.nets.sharing import Sharing
from raynas.space import Arch, Space
from raynas.space.families.hybrid import grids, hidden_width, mlp_width, resolutions, squeezed_width, window_grid


@dataclass(frozen=True, eq=False)
class StageShape:
    """What acts in one stage: its width, and its layers in their order."""

    width: Channels
    layers: list[ConvShape | BlockShape]


class Stage(nn.Module):
    """Inverted residuals; or one of them, then transformer blocks.

    Args:
        space: the space.
        stage: which.
        inputs: input channels held.
        before: the widths that the stage before may have.
        layers: how many at most.
    """

    def __init__(self, space: Space, stage: int, inputs: int, before: tuple[int, ...], layers: int):
        super().__init__()
        self.space, self.index = space, stage
        constants, self.here = space.constants, f"stages.{stage}"
        widths, expansions, kernels = (
            space[f"{self.here}.{leaf}"].choices for leaf in ("width", "expansion", "kernel")
        )
        self.width = width = int(max(widths))

        def residual(inputs: int, stride: int, changes: bool) -> InvertedResidual:
            hidden = int(hidden_width(constants, stage, inputs, max(expansions)))
            squeezed = int(squeezed_width(constants, hidden)) if constants.squeeze[stage] else 0
            expands = constants.expands[stage]
            return InvertedResidual(inputs, hidden, squeezed, width, int(max(kernels)), stride, expands, changes)

        changes = any(one != other for one in before for other in widths)
        first = residual(inputs, constants.strides[stage], changes)
        if constants.kinds[stage] == "conv":
            rest: list[nn.Module] = [residual(width, 1, changes=False) for _ in range(1, layers)]
        else:
            rest = [self._block(layer) for layer in range(1, layers)]
        self.layers = nn.ModuleList([first, *rest])

    def _block(self, layer: int) -> TransformerBlock:
        """A block as large as its choices are, with the rows of factors that some arch reads."""
        space, constants = self.space, self.space.constants
        widths, depths, ratios, windows = (
            space[f"{self.here}.{leaf}"].choices for leaf in ("width", "depth", "mlp_ratio", "windows")
        )
        of = [grids(space, resolution)[self.index + 1] for resolution in resolutions(space)]
        sides = [window_grid(grid, count) for grid in of for count in windows]
        largest = max(int(rows) for rows, _ in sides), max(int(columns) for _, columns in sides)
        keys = [list(widths)]
        if constants.scaling == "depth_tokens":
            keys = [[d for d in depths if d > layer], sorted({math.prod(grid) % SCALING_KEYS for grid in of})]
        return TransformerBlock(constants, self.width, int(mlp_width(self.width, max(ratios))), largest, keys)

    def shape(self, arch: Arch, inputs: Channels, grid: tuple[int, int], share: Sharing) -> StageShape:
        """What acts for one arch.

        Args:
            inputs: the channels of the stage before.
            grid: rows and columns behind the first layer.
            share: the weight-sharing pattern.

        Raises:
            UserError: the supernet does not hold the arch.
        """
        depth, count = int(arch[f"{self.here}.depth"]), int(arch[f"{self.here}.width"])
        if depth > len(self.layers):
            raise UserError(f"the arch has {depth} layers in stage {self.index}, the supernet {len(self.layers)}")
        width = share(count, self.width)
        layers: list[ConvShape | BlockShape] = []
        for layer in self._layers[:depth]:
            if isinstance(layer, InvertedResidual):
                layers.append(self._conv_shape(arch, layer, width if layers else inputs, width, share))
            else:
                layers.append(self._block_shape(arch, layer, width, grid, share))
        return StageShape(width, layers)

    def _conv_shape(
        self, arch: Arch, layer: InvertedResidual, inputs: Channels, width: Channels, share: Sharing
    ) -> ConvShape:
        constants, hidden, squeezed = self.space.constants, inputs, inputs
        kernel, expansion = (int(arch[f"{self.here}.{leaf}"]) for leaf in ("kernel", "expansion"))
        if layer.expand is not None:
            held = layer.expand.conv.weight.shape[0]
            hidden = share(int(hidden_width(constants, self.index, inputs.count, expansion)), held)
        if layer.squeeze is not None:
            held = layer.squeeze.reduce.weight.shape[0]
            squeezed = share(int(squeezed_width(constants, hidden.count)), held)
        return ConvShape(inputs, hidden, squeezed, width, kernel)

    def _block_shape(
        self, arch: Arch, layer: TransformerBlock, width: Channels, grid: tuple[int, int], share: Sharing
    ) -> BlockShape:
        constants = self.space.constants
        dim, depth = constants.head_dim, int(arch[f"{self.here}.depth"])
        ratio, windows = arch[f"{self.here}.mlp_ratio"], arch[f"{self.here}.windows"]
        rows, columns = window_grid(grid, windows)
        hidden = share(int(mlp_width(width.count, ratio)), layer.mlp1.fc1.weight.shape[0])
        by_depth = constants.scaling == "depth_tokens"
        row = (depth, math.prod(grid) % SCALING_KEYS) if by_depth else (width.count,)
        heads = share(width.count // dim, self.width // dim)
        return BlockShape(width, heads, hidden, grid, (int(rows), int(columns)), row)

    @property
    def _layers(self) -> list[InvertedResidual | TransformerBlock]:
        return cast(list[InvertedResidual | TransformerBlock], list(self.layers))

    def select(self, shape: StageShape) -> dict[str, Tensor]:
        """The acting part of the parameters and running averages."""
        return {
            f"layers.{index}.{name}": tensor
            for index, each in enumerate(shape.layers)
            for name, tensor in self._layers[index].select(each).items()  # type: ignore[arg-type]
        }

    def forward(self, x: Tensor, shape: StageShape, paths: Tensor | None) -> Tensor:
        """[batch, inputs, height, width] to [batch, width, rows, columns].

        Args:
            paths: [layers, 3, batch], what each row's branches are multiplied with (an inverted residual has one).
        """
        for index, (layer, each) in enumerate(zip(self._layers, shape.layers, strict=False)):
            path = None if paths is None else paths[index]
            if isinstance(layer, InvertedResidual):
                x = layer(x, each, None if path is None else path[0])
            else:
                assert isinstance(each, BlockShape)
                x = layer(x.flatten(2).transpose(1, 2), each, path).transpose(1, 2).unflatten(2, each.grid)
        return x
