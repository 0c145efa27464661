"""Base of staged supernets: active channels of each stage, ramp of drop-path rates, and heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeVar, cast

from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.channels import Channels
from raynas.nets.classifier import Classifiers
from raynas.nets.layers import ElasticNorm
from raynas.nets.sharing import Sharing, Side
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Space
from raynas.space.stages import running

BlockT = TypeVar("BlockT", bound=nn.Module)
StageT = TypeVar("StageT", bound="ElasticStage[Any]")


@dataclass(frozen=True, eq=False)
class StageShape:
    """Active channels of one stage.

    Attributes:
        inputs: the channels of the stage before; None for the first stage.
        blocks: the family's shapes of the blocks that run, by place.
    """

    inputs: Channels | None
    width: Channels
    blocks: dict[int, Any]


class ElasticStage(nn.Module, Generic[BlockT]):
    """Blocks on one grid of tokens, after a module that joins the stage to the one before.

    Attributes:
        joint: name of the joining module, in all stages but the first; None if the first block joins the stages.
        places: name of the list of blocks by place, with an identity for a block that is never kept.
        width: largest embedding width.
    """

    joint: ClassVar[str | None] = None
    places: ClassVar[str] = "blocks"
    width: int

    def block(self, index: int) -> BlockT:
        """Return one block.

        Raises:
            UserError: the stage is not that deep, or the block is never kept.
        """
        blocks = cast(nn.ModuleList, getattr(self, self.places))
        block = blocks[index] if index < len(blocks) else nn.Identity()
        if isinstance(block, nn.Identity):
            raise UserError(f"the arch has a block {index} in a stage for which the supernet has none there")
        return cast(BlockT, block)

    def select(self, shape: StageShape) -> dict[str, Tensor]:
        """Return the active part of the parameters."""
        parts = {f"{self.places}.{i}": cast(Any, self.block(i)).select(block) for i, block in shape.blocks.items()}
        if self.joint is not None and shape.inputs is not None:
            parts[self.joint] = getattr(self, self.joint).select(shape.inputs, shape.width)
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}

    def forward(self, x: Tensor, shape: StageShape, paths: Tensor | None) -> Tensor:
        """Map tokens [batch, tokens, inputs] to [batch, tokens, width]; inputs equal width in the first stage.

        Args:
            paths: [places, branches, batch]; see `Block.forward`.
        """
        if self.joint is not None and shape.inputs is not None:
            x = getattr(self, self.joint)(x, shape.inputs, shape.width)
        for index, block in shape.blocks.items():
            x = self.block(index)(x, block, None if paths is None else paths[index])
        return x


class StagedSupernet(Supernet, Classifiers, Generic[StageT]):
    """A supernet of stages, each with its own channels and an elastic number of blocks.

    A family builds its stages, calls `add_heads`, and implements the embedding and the shapes of blocks. A family with
    other searched layers around the stages (hybrids) overrides `acting`, `run` and `select`.

    Attributes:
        ramp: each stage's first step of the drop-path ramp, then the total number of steps.
    """

    stages: nn.ModuleList

    def __init__(self, space: Space):
        super().__init__(space)
        self.ramp: list[int] = [0, *accumulate(space.constants.drop_path_depths)]

    def add_heads(self, width: int) -> None:
        """Add the final norm and the classifiers, for the last stage's largest width."""
        self.norm = ElasticNorm(width, self.space.constants.norm_eps)
        self.add_classifiers(width, self.space)

    @property
    def _stages(self) -> list[StageT]:
        return cast(list[StageT], list(self.stages))

    # -- implemented by a family -----------------------------------------------------------------------------------

    def embed(self, x: Tensor, width: Channels) -> Tensor:
        """Return the first stage's input, from the images or the stem's output."""
        raise NotImplementedError

    def select_embedding(self, width: Channels) -> dict[str, dict[str, Tensor]]:
        """Return the active part of the parameters before the stages, by module."""
        raise NotImplementedError

    def block_shape(self, arch: Arch, stage: int, place: int, width: Channels, share: Sharing) -> Any:
        """Return the shape of a block that an arch runs."""
        raise NotImplementedError

    def block_shape_of_rows(
        self, archs: Sequence[Arch | None], stage: int, place: int, width: Channels, rows: Tensor
    ) -> Any:
        """Return a block's shape for the rows of a mixed batch (with masks); archs that do not run it are None."""
        raise NotImplementedError

    # -- shapes ----------------------------------------------------------------------------------------------------

    def acting(self, arch: Arch, side: Side | None) -> Any:
        """Return the shape of an arch: the shapes of its stages."""
        return self.shape(arch, side)

    def shape(self, arch: Arch, side: Side | None = None) -> list[StageShape]:
        """Return the shape of each stage for one arch.

        Raises:
            UserError: the arch does not fit the supernet.
        """
        self._check_stages(arch)
        share, shapes = self.pattern[side], list[StageShape]()
        for index, stage in enumerate(self._stages):
            width = share(int(arch[f"stages.{index}.width"]), stage.width, "width")
            blocks = {place: self.block_shape(arch, index, place, width, share) for place in running(arch, index)}
            shapes.append(StageShape(shapes[-1].width if shapes else None, width, blocks))
        return shapes

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> list[StageShape]:
        """Return the shape of each stage for the rows of a mixed batch.

        Args:
            archs: archs that differ only in maskable dimensions (see `unmaskable`).
            rows: [batch] int64, each row's arch.
        """
        for arch in archs:
            self._check_stages(arch)
        shapes: list[StageShape] = []
        for index in range(len(self.stages)):
            width = Channels.first_of_each([int(arch[f"stages.{index}.width"]) for arch in archs], rows)
            runs = [set(running(arch, index)) for arch in archs]
            blocks = {}
            for place in sorted(set.union(*runs)):
                there = [arch if place in each else None for arch, each in zip(archs, runs, strict=True)]
                blocks[place] = self.block_shape_of_rows(there, index, place, width, rows)
            shapes.append(StageShape(shapes[-1].width if shapes else None, width, blocks))
        return shapes

    def _check_stages(self, arch: Arch) -> None:
        stages = sum(name.startswith("stages.") and name.endswith(".width") for name in arch)
        if stages != len(self.stages):
            raise UserError(f"the arch has {stages} stages, the supernet {len(self.stages)}")

    # -- the network -----------------------------------------------------------------------------------------------

    def run(self, x: Tensor, acting: Any, paths: Tensor | None, patches: bool) -> Tensor:
        """Map the stem's output to logits, as `forward` returns them; used by every execution."""
        shapes: list[StageShape] = acting
        x = self.run_stages(self.embed(x, shapes[0].width), shapes, paths)
        return self.classify(x, shapes[-1].width, patches)

    def run_stages(self, x: Tensor, shapes: Sequence[StageShape], paths: Tensor | None) -> Tensor:
        """Map the first stage's input to the last stage's output."""
        for index, (stage, shape) in enumerate(zip(self._stages, shapes, strict=True)):
            x = stage(x, shape, None if paths is None else paths[self.ramp[index] : self.ramp[index + 1]])
        return x

    def classify(self, x: Tensor, width: Channels, patches: bool) -> Tensor:
        """Map the last stage's tokens [batch, tokens, width] to logits, from their mean."""
        x = self.norm(x, width)
        return self.logits([self.drop_features(x.mean(1))], x, width, patches)

    def run_masked(self, x: Tensor, archs: list[Arch], rows: Tensor, paths: Tensor | None, patches: bool) -> Tensor:
        """Return the logits of a mixed batch from one masked pass, as `forward` does."""
        return self.run(x, self.shape_of_rows(archs, rows), paths, patches)

    def places(self, arch: Arch) -> list[int]:
        """Return the steps of the drop-path ramp of the blocks that an arch runs."""
        return [self.ramp[stage] + place for stage in range(len(self.stages)) for place in running(arch, stage)]

    def ramp_length(self) -> int:
        """Return the sum of the constant `drop_path_depths`."""
        return self.ramp[-1]

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        """Return the active part of an arch's parameters and saved buffers by name: its state dict, as views."""
        shapes = self.shape(self._arch(arch), side)
        width = shapes[-1].width
        parts = {
            **self.select_embedding(shapes[0].width),
            **{f"stages.{i}": stage.select(shapes[i]) for i, stage in enumerate(self._stages)},
            "norm": self.norm.select(width),
            **self.select_classifiers(width),
        }
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}
