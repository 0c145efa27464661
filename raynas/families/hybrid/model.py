"""The hybrid supernet: NASViT (Gong et al., 2022) and, without transformer stages, AlphaNet (Wang et al., 2021)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch.fx
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.errors import UserError
from raynas.families.hybrid.attention import DefaultLinear
from raynas.families.hybrid.conv import ConvShape, NormedConv
from raynas.families.hybrid.space import grids, image_sides
from raynas.families.hybrid.stage import Stage
from raynas.families.hybrid.transformer import HybridBlockShape, TransformerBlock
from raynas.nets.attention_maps import Attending
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticConv, Through, in_order, select_layers
from raynas.nets.sharing import Sharing, Side
from raynas.nets.stages import StagedSupernet, StageShape
from raynas.nets.units import UnitAxis, UnitGroup, noted_units
from raynas.nets.windows import Windows
from raynas.space import Arch, Space
from raynas.space.stages import most_blocks

torch.fx.wrap("in_order")  # opaque to torch.fx


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
    order = torch.channels_last
    """Order of activations in memory on CPUs, where convolutions are faster in this one (docs/speed.md)."""

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
        self.add_classifiers(mixed, space)
        self.settle()

    def add_classifiers(self, width: int, space: Space) -> None:
        """Add the classifier, with torch's initialisation."""
        self.classified, self.token_head, self.distillation_head = width, None, None
        self.head = DefaultLinear(width, space.classes)  # type: ignore[assignment]

    # -- shapes ----------------------------------------------------------------------------------------------------

    def block_shape(
        self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing
    ) -> ConvShape | HybridBlockShape:
        before = f"stages.{stage - 1}.width" if stage else "stem.width"
        held = self._stages[stage - 1].width if stage else self.stem.conv.weight.shape[0]
        rows, columns = grids(self.space, self._resolution(arch))[stage + 1]
        inputs, grid = share(int(arch[before]), held, "width"), (int(rows), int(columns))
        return self._stages[stage].block_shape(arch, place, inputs, width, grid, share)

    def acting(self, arch: Arch, side: Side | None = None) -> Shape:
        share, stages = self.pattern[side], super().acting(arch, side)
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

    def trunk(self, x: Tensor, acting: Shape, paths: Tensor | None, taps: list[Tensor] | None = None) -> Tensor:
        """Map images to the last stage's output [batch, width, rows, columns]; `taps` collects every stage's."""
        if acting.sides != self.space.input_size:
            x = F.interpolate(x, size=acting.sides, mode="bicubic", align_corners=False)
        x = F.silu(self.stem(in_order(x, self.order), Channels.first(self.space.channels), acting.stem))
        return self.run_stages(x, acting.stages, paths, taps)

    def normed(self, x: Tensor, acting: Shape, whole: bool = True) -> Tensor:
        """Widen the last stage's output, unless that part was removed."""
        if isinstance(self.widen, Through):
            return x
        return F.silu(self.widen(x, acting.stages[-1].width, acting.wide))

    def pool(self, x: Tensor, acting: Shape) -> list[Tensor]:
        """Return the mixed means of the channels [batch, mixed], after dropout."""
        x = F.silu(self.mix(x.mean((2, 3), keepdim=True), acting.wide, acting.mixed)).flatten(1)
        return [self.drop_features(x)]

    def head_width(self, acting: Shape) -> Channels:
        """Return the mixed channels."""
        return acting.mixed

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

    def space_at(self, size: int | tuple[int, int], scaled: bool = False) -> Space:
        """Return the space of the same networks for images of another size.

        Raises:
            UserError: the archs choose the resolution; or they use different parts of one table of positions, which
                cannot be resized for all.
        """
        space = super().space_at(size, scaled)
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

    def unscaled(self) -> HybridSupernet:
        """Return the same network for images of its resolution, of which it takes other sizes, too."""
        if not self.space.has("resolution"):
            return self
        rows, columns = image_sides(self.space.input_size, self._resolution(self.space.smallest()))
        given = self.space.to_dict()
        given["dimensions"] = {name: of for name, of in given["dimensions"].items() if name != "resolution"}
        return self.fitted_to(Space.from_dict(given).with_input(size=(int(rows), int(columns))), copy=False)

    # -- timm's conventions ----------------------------------------------------------------------------------------

    layout = "NCHW"
    first_conv = "stem.conv"

    @property
    def num_features(self) -> int:
        """Number of channels of features: of the last stage, widened."""
        wide = not isinstance(self.widen, Through)
        return self._settled_shape().wide.count if wide else self.levels()[-1].channels

    @property
    def head_hidden_size(self) -> int:
        """Number of channels of the classifier's input; of features if that part was removed."""
        wide = not isinstance(self.widen, Through)
        return self._settled_shape().mixed.count if wide else self.num_features

    def stage_shapes(self, acting: Shape) -> list[StageShape]:
        return acting.stages

    def stage_grids(self, acting: Shape) -> list[tuple[int, tuple[int, int]]]:
        """Return each stage's pixels on the side of a token (of the resized image), and its rows and columns."""
        constants, arch = self.space.constants, self.space.smallest()
        sides = [side for side in accumulate(constants.strides, operator.mul, initial=constants.stem_stride)][1:]
        found = grids(self.space, self._resolution(arch))[1:]
        return [(side, (int(rows), int(columns))) for side, (rows, columns) in zip(sides, found, strict=True)]

    def block_attends(self, name: str, shape: Any, pixels: int, grid: tuple[int, int]) -> list[Attending]:
        """Return the attention of a transformer block inside its windows; convolutions have none."""
        if not isinstance(shape, HybridBlockShape):
            return []
        return [Attending(name, Windows(shape.grid, shape.window), pixels)]

    def normed_level(self, x: Tensor, acting: Shape, last: bool) -> Tensor:
        """Return a stage's output as it is: the last convolution widens it."""
        return x

    def until(self, acting: Shape, tap: int) -> Shape:
        return replace(acting, stages=acting.stages[: tap + 1])

    def remove_norm(self) -> None:
        """Remove the widening and mixing convolutions."""
        self.widen, self.mix = Through(), Through()  # type: ignore[assignment]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of parameter names by layer: the stem, layers or stages, then the head."""
        matcher = super().group_matcher(coarse)
        return {**matcher, "blocks": matcher["blocks"][:-1]}

    # -- parts -----------------------------------------------------------------------------------------------------

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
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
