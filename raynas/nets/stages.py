"""Base of staged supernets: active channels of each stage, ramp of drop-path rates, and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Generic, TypeVar, cast

from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.attention_maps import Attending
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticNorm, Through
from raynas.nets.sharing import Sharing, Side
from raynas.nets.supernet import Supernet
from raynas.nets.timm_conventions import Level, checkpointed
from raynas.nets.windows import Windows
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
        grad_checkpointing: True if blocks keep no intermediate results for the backward pass.
    """

    joint: ClassVar[str | None] = None
    places: ClassVar[str] = "blocks"
    width: int
    grad_checkpointing = False

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
        return self.run_blocks(x, shape.blocks, paths)

    def run_blocks(self, x: Tensor, blocks: Mapping[int, Any], paths: Tensor | None) -> Tensor:
        """Run blocks, given by place with their shapes, one after the other."""
        for index, shape in blocks.items():
            block, factors = self.block(index), None if paths is None else paths[index]
            x = checkpointed(block, x, shape, factors) if self.grad_checkpointing else block(x, shape, factors)
        return x


def new_blocks(space: Space, stage: int, count: int, build: Callable[[str], nn.Module]) -> nn.ModuleList:
    """Build a stage's blocks by their places, such as `stages.0.blocks.3`; an identity for one that is never kept."""
    places = [f"stages.{stage}.blocks.{index}" for index in range(count)]
    return nn.ModuleList(build(place) if space.has(f"{place}.heads") else nn.Identity() for place in places)


class StagedSupernet(Supernet, Generic[StageT]):
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
        self.norm: ElasticNorm | Through = ElasticNorm(width, self.space.constants.norm_eps)
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

    def acting(self, arch: Arch, side: Side | None = None) -> Any:
        """Return the shape of each stage for one arch."""
        self._check_stages(arch)
        share, shapes = self.pattern[side], list[StageShape]()
        for index, stage in enumerate(self._stages):
            width = share(int(arch[f"stages.{index}.width"]), stage.width, "width")
            blocks = {place: self.block_shape(arch, index, place, width, share) for place in running(arch, index)}
            shapes.append(StageShape(shapes[-1].width if shapes else None, width, blocks))
        return shapes

    def shape_of_rows(self, archs: Sequence[Arch], rows: Tensor) -> list[StageShape]:
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

    def trunk(self, x: Tensor, acting: Any, paths: Tensor | None, taps: list[Tensor] | None = None) -> Tensor:
        """Map the stem's output to the last stage's output; `taps` collects every stage's."""
        shapes: list[StageShape] = acting
        return self.run_stages(self.embed(x, shapes[0].width), shapes, paths, taps)

    def run_stages(
        self, x: Tensor, shapes: Sequence[StageShape], paths: Tensor | None, taps: list[Tensor] | None
    ) -> Tensor:
        """Map the first stage's input to the last stage's output; `taps` collects every stage's."""
        for index, (stage, shape) in enumerate(zip(self._stages, shapes)):  # noqa: B905  the shapes may end earlier
            x = stage(x, shape, None if paths is None else paths[self.ramp[index] : self.ramp[index + 1]])
            if taps is not None:
                taps.append(x)
        return x

    def normed(self, x: Tensor, acting: Any, whole: bool = True) -> Tensor:
        """Normalise the last stage's output."""
        return self.norm(x, self.head_width(acting))

    def pool(self, x: Tensor, acting: Any) -> list[Tensor]:
        """Return the mean over all tokens, after dropout."""
        return [self.drop_features(x.mean(1))]

    def head_width(self, acting: Any) -> Channels:
        """Return the last stage's channels."""
        return acting[-1].width

    def places(self, arch: Arch) -> list[int]:
        return [self.ramp[stage] + place for stage in range(len(self.stages)) for place in running(arch, stage)]

    def ramp_length(self) -> int:
        """Return the sum of the constant `drop_path_depths`."""
        return self.ramp[-1]

    def select(self, arch: Mapping[str, Any], side: Side | None = None) -> dict[str, Tensor]:
        shapes = self.acting(self._arch(arch), side)
        width = shapes[-1].width
        parts = {
            **self.select_embedding(shapes[0].width),
            **{f"stages.{i}": stage.select(shapes[i]) for i, stage in enumerate(self._stages)},
            "norm": self.norm.select(width),
            **self.select_classifiers(width),
        }
        return {f"{part}.{name}": tensor for part, selected in parts.items() for name, tensor in selected.items()}

    def attending(self) -> list[Attending]:
        """Return the blocks with self-attention of a one-point space's network."""
        acting, found = self._settled_shape(), []
        for index, (shape, (pixels, grid)) in enumerate(
            zip(self.stage_shapes(acting), self.stage_grids(acting), strict=True)
        ):
            for place, block in shape.blocks.items():
                name = f"stages.{index}.{self._stages[index].places}.{place}"
                found += self.block_attends(name, block, pixels, grid)
        return found

    def block_attends(self, name: str, shape: Any, pixels: int, grid: tuple[int, int]) -> list[Attending]:
        """Return the self-attention of a block, by default to the whole grid and the class tokens; [] for none."""
        return [Attending(name, Windows(grid, grid), pixels, class_tokens=self.num_prefix_tokens)]

    # -- timm's conventions ----------------------------------------------------------------------------------------

    def stage_shapes(self, acting: Any) -> list[StageShape]:
        """Return the shapes of the stages from that of the network."""
        return acting

    def stage_grids(self, acting: Any) -> list[tuple[int, tuple[int, int]]]:
        """Return each stage's pixels on the side of a token, and its rows and columns."""
        raise NotImplementedError

    def levels(self) -> list[Level]:
        """Return the stages; of stages on the same grid the last."""
        acting = self._settled_shape()
        found = {
            reduction: Level(f"stages.{index}", shape.width.count, reduction, grid, index)
            for index, (shape, (reduction, grid)) in enumerate(
                zip(self.stage_shapes(acting), self.stage_grids(acting))  # noqa: B905  as above
            )
        }
        return list(found.values())

    def until(self, acting: Any, tap: int) -> Any:
        return acting[: tap + 1]

    def cut(self, tap: int) -> None:
        """Remove the stages behind one."""
        self.stages = self.stages[: tap + 1]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return patterns of parameter names by layer: the embedding, then blocks or stages, then the head."""
        blocks = [(r"^stages\.(\d+)\.\w+\.(\d+)", None), (r"^stages\.(\d+)", (0,))]
        return {
            "stem": r"^(?:stem|embedding|stages\.0\.(?:embedding|norm))\b",
            "blocks": [*([(r"^stages\.(\d+)", None)] if coarse else blocks), (r"^norm", (99999,))],
        }
