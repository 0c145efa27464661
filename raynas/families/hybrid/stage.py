"""A stage of the hybrid supernet, and the shapes of its layers."""

from __future__ import annotations

import math

from torch import nn

from raynas.families.hybrid.conv import ConvShape, InvertedResidual
from raynas.families.hybrid.space import grids, hidden_width, mlp_width, resolutions, squeezed_width, window_grid
from raynas.families.hybrid.transformer import SCALING_KEYS, HybridBlockShape, TransformerBlock
from raynas.nets.channels import Channels
from raynas.nets.sharing import Sharing
from raynas.nets.stages import ElasticStage
from raynas.space import Arch, Space


class Stage(ElasticStage[InvertedResidual | TransformerBlock]):
    """Inverted residuals; or one of them, then transformer blocks.

    Args:
        before: all widths of the stage before.
        layers: largest number of layers.
    """

    places = "layers"

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
            rest = [self._new_block(layer) for layer in range(1, layers)]
        self.layers = nn.ModuleList([first, *rest])

    def _new_block(self, layer: int) -> TransformerBlock:
        """Build a block of its largest choices, with the rows of factors that archs use."""
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

    def block_shape(
        self, arch: Arch, place: int, inputs: Channels, width: Channels, grid: tuple[int, int], share: Sharing
    ) -> ConvShape | HybridBlockShape:
        """Return the shape of a layer that an arch runs.

        Args:
            inputs: the channels of the stage before.
            grid: rows and columns after the first layer.
        """
        layer = self.block(place)
        if isinstance(layer, InvertedResidual):
            return self._conv_shape(arch, layer, width if place else inputs, width, share)
        return self._block_shape(arch, layer, width, grid, share)

    def _conv_shape(
        self, arch: Arch, layer: InvertedResidual, inputs: Channels, width: Channels, share: Sharing
    ) -> ConvShape:
        constants, hidden, squeezed = self.space.constants, inputs, inputs
        kernel, expansion = (int(arch[f"{self.here}.{leaf}"]) for leaf in ("kernel", "expansion"))
        if layer.expand is not None:
            held = layer.expand.conv.weight.shape[0]
            hidden = share(int(hidden_width(constants, self.index, inputs.count, expansion)), held, "hidden")
        if layer.squeeze is not None:
            held = layer.squeeze.reduce.weight.shape[0]
            squeezed = share(int(squeezed_width(constants, hidden.count)), held, "hidden")
        return ConvShape(inputs, hidden, squeezed, width, kernel)

    def _block_shape(
        self, arch: Arch, layer: TransformerBlock, width: Channels, grid: tuple[int, int], share: Sharing
    ) -> HybridBlockShape:
        constants = self.space.constants
        dim, depth = constants.head_dim, int(arch[f"{self.here}.depth"])
        ratio, windows = arch[f"{self.here}.mlp_ratio"], arch[f"{self.here}.windows"]
        rows, columns = window_grid(grid, windows)
        hidden, held = int(mlp_width(width.count, ratio)), layer.mlp1.fc1.weight.shape[0]
        each = share(hidden, held, "hidden"), share(hidden, held, "hidden")
        by_depth = constants.scaling == "depth_tokens"
        row = (depth, math.prod(grid) % SCALING_KEYS) if by_depth else (width.count,)
        heads = share(width.count // dim, self.width // dim, "width")
        return HybridBlockShape(width, heads, each, grid, (int(rows), int(columns)), row)
