"""The hybrid supernet: NASViT (Gong et al., 2022) and, without transformer stages, AlphaNet (Wang et al., 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.hybrid.attention import DefaultLinear
from raynas.families.hybrid.conv import ConvShape, NormedConv
from raynas.families.hybrid.space import grids, image_sides
from raynas.families.hybrid.stage import Stage
from raynas.families.hybrid.transformer import HybridBlockShape, TransformerBlock
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticConv, select_layers
from raynas.nets.sharing import Sharing, Side
from raynas.nets.stages import StagedSupernet, StageShape
from raynas.nets.units import UnitAxis, UnitGroup, noted_units
from raynas.space import Arch, Space
from raynas.space.stages import most_blocks


@dataclass(frozen=True, eq=False)
class Shape:
    """Image size and active channels of a network.

    Attributes:
        sides: height and width of resized images.
        wide, mixed: the channels before the pooling, and the classifier's input channels.
    """

    sides: tuple[int, int]
    stem: Channels
    stages: list[StageShape]
    wide: Channels
    mixed: Channels


class HybridSupernet(StagedSupernet[Stage]):
    """A hybrid of elastic resolution, widths, depths, kernels, expansions, MLP ratios and windows.

    A stage's residual stream and the inputs of the next stage's first layer have the same active channels; hidden and
    squeezed channels and heads have their own. The network resizes images to its arch's resolution. In training every
    arch is normalised by its own rows of a batch, so mixed batches can only run in groups.
    """

    branches = 3

    def __init__(self, space: Space):
        super().__init__(space)
        constants = space.constants
        before = space["stem.width"].choices
        self.stem = NormedConv(space.channels, max(before), side=3, stride=constants.stem_stride)
        stages = []
        for index, layers in enumerate(most_blocks(space.dimensions)):
            stages.append(Stage(space, index, max(before), before, layers))
            before = space[f"stages.{index}.width"].choices
        self.stages = nn.ModuleList(stages)
        wide, mixed = constants.head_expansion * max(before), max(space["head.width"].choices)
        self.widen = NormedConv(max(before), wide)
        self.mix = ElasticConv(wide, mixed, side=1, bias=False)
        self.head = DefaultLinear(mixed, space.classes)  # type: ignore[assignment]  # other initialisation
        self.settle()

    # -- shapes ----------------------------------------------------------------------------------------------------

    def block_shape(
        self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing
    ) -> ConvShape | HybridBlockShape:
        """Return the shape of a layer that an arch runs."""
        before = f"stages.{stage - 1}.width" if stage else "stem.width"
        held = self._stages[stage - 1].width if stage else self.stem.conv.weight.shape[0]
        rows, columns = grids(self.space, self._resolution(arch))[stage + 1]
        inputs, grid = share(int(arch[before]), held, "width"), (int(rows), int(columns))
        return self._stages[stage].block_shape(arch, place, inputs, width, grid, share)

    def acting(self, arch: Arch, side: Side | None) -> Shape:
        """Return the shape of an arch."""
        share, stages = self.pattern[side], self.shape(arch, side)
        rows, columns = image_sides(self.space.input_size, self._resolution(arch))
        wide = self.space.constants.head_expansion * stages[-1].width.count
        return Shape(
            (int(rows), int(columns)),
            share(int(arch["stem.width"]), self.stem.conv.weight.shape[0], "width"),
            stages,
            share(wide, self.widen.conv.weight.shape[0], "width"),
            share(int(arch["head.width"]), self.mix.weight.shape[0], "width"),
        )

    def exchangeable(self) -> list[UnitGroup]:
        """Return the units that can be permuted; a stage as wide as the one before has its channels, by a shortcut."""
        return noted_units(self, [self.space.largest(), self.space.smallest()], self._tied())

    def _tied(self) -> Iterator[tuple[UnitAxis, UnitAxis]]:
        """Yield pairs of axes that hold the channels of the same stage, or of two that a shortcut adds."""
        before = UnitAxis("stem.conv.weight", 0)
        for index, stage in enumerate(self._stages):
            first: Any = stage.layers[0]
            here = f"stages.{index}.layers.0"
            into, out = UnitAxis(f"{here}.expand.conv.weight", 1), UnitAxis(f"{here}.project.conv.weight", 0)
            if first.expand is None:
                into = UnitAxis(f"{here}.depthwise.weight", 0)
            yield before, into
            if first.shortcut is not None:
                yield into, UnitAxis(f"{here}.shortcut.weight", 1)
                yield out, UnitAxis(f"{here}.shortcut.weight", 0)
            largest = self.space.largest()
            if largest[f"stages.{index}.width"] == largest[f"stages.{index - 1}.width" if index else "stem.width"]:
                yield before, out
            before = out

    def _resolution(self, arch: Arch) -> int:
        return int(arch.get("resolution", min(self.space.input_size)))

    # -- the network -----------------------------------------------------------------------------------------------

    def run(self, x: Tensor, acting: Shape, paths: Tensor | None, patches: bool) -> Tensor:
        """Map images to logits, as `forward` returns them."""
        if acting.sides != self.space.input_size:
            x = F.interpolate(x, size=acting.sides, mode="bicubic", align_corners=False)
        x = F.silu(self.stem(x, Channels.first(self.space.channels), acting.stem))
        x = self.run_stages(x, acting.stages, paths)
        x = F.silu(self.widen(x, acting.stages[-1].width, acting.wide)).mean((2, 3), keepdim=True)
        x = F.silu(self.mix(x, acting.wide, acting.mixed)).flatten(1)
        return self.head(self.drop_features(x), acting.mixed, Channels.first(self.space.classes))

    @property
    def token_grid(self) -> tuple[int, int]:
        """Unavailable for hybrids.

        Raises:
            UserError: there is no token head.
        """
        raise UserError(
            f"space {self.space.name}: a hybrid pools its tokens before it classifies: it has no token head"
        )

    def position_grids(self) -> dict[str, tuple[int, int]]:
        """Return the grids of the blocks' tables of relative position."""
        return {
            f"stages.{index}.layers.{place}.attention.relative.table": layer.attention.relative.offsets
            for index, stage in enumerate(self._stages)
            for place, layer in enumerate(stage.layers)
            if isinstance(layer, TransformerBlock)
        }

    def space_at(self, size: int | tuple[int, int]) -> Space:
        """Return the space of the same networks for images of another size.

        Raises:
            UserError: the archs choose the resolution; or they use different parts of one table of positions, which
                cannot be resized for all.
        """
        space = super().space_at(size)
        if space.input_size == self.space.input_size:
            return space
        if self.space.has("resolution"):
            raise UserError(
                f"space {self.space.name}: images are resized to the arch's resolution, whatever size they come in: "
                "choose an arch of another resolution"
            )
        if any(d.name.endswith(".windows") and len(d.choices) > 1 for d in self.space.dimensions):
            raise UserError(f"space {self.space.name}: windows are a choice: resize a subnet, supernet.extract")
        return space

    # -- parts -----------------------------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        """Return the active part of an arch's parameters and running averages: its state dict, as views."""
        arch = self._arch(arch)
        shape, image = self.acting(arch, side), Channels.first(self.space.channels)
        layers = {
            "stem": (image, shape.stem),
            "widen": (shape.stages[-1].width, shape.wide),
            "mix": (shape.wide, shape.mixed),
            "head": (shape.mixed, Channels.first(self.space.classes)),
        }
        selected = select_layers(self, layers)
        for index, (stage, here) in enumerate(zip(self._stages, shape.stages, strict=True)):
            selected.update({f"stages.{index}.{name}": tensor for name, tensor in stage.select(here).items()})
        return selected

    def no_weight_decay(self) -> set[str]:
        """Return the names of factors and relative position; the trainer exempts 1-D tensors itself."""
        return {name for name, _ in self.named_parameters() if "_scaling." in name or ".relative." in name}


SUPERNET = HybridSupernet
