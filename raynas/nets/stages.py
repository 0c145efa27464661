"""What supernets of stages have in common: which blocks there are, the ramp of drop-path rates, and selection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

from torch import Tensor, nn

from raynas.errors import UserError
from raynas.nets.sharing import pattern
from raynas.nets.supernet import Supernet, drop_branches
from raynas.space import Arch, Space

BlockT = TypeVar("BlockT", bound=nn.Module)
StageT = TypeVar("StageT", bound="ElasticStage[Any]")


class ElasticStage(nn.Module, Generic[BlockT]):
    """Blocks on one grid of tokens, and what leads there.

    Attributes:
        width: embedding channels held.
        blocks: the blocks by place; nothing where a block is never kept.
    """

    width: int
    blocks: nn.ModuleList

    def block(self, index: int) -> BlockT:
        """One block.

        Raises:
            UserError: the stage is not that deep, or the block is never kept.
        """
        block = self.blocks[index] if index < len(self.blocks) else nn.Identity()
        if isinstance(block, nn.Identity):
            raise UserError(f"the arch has a block {index} in a stage for which the supernet has none there")
        return cast(BlockT, block)

    def select(self, shape: Any) -> dict[str, Tensor]:
        """The acting part of the parameters, by name."""
        raise NotImplementedError


class StagedSupernet(Supernet, Generic[StageT]):
    """A supernet over stages, each with channels of its own, and an elastic number of blocks.

    Attributes:
        stages: the stages.
        pattern: how widths share channels, by side.
        ramp: where each stage's steps of the drop-path ramp begin; the last number is their sum.
    """

    stages: nn.ModuleList

    def __init__(self, space: Space):
        super().__init__(space)
        self.pattern = {side: pattern(space.constants, side) for side in (None, "left", "right")}
        self.ramp: list[int] = [0, *accumulate(space.constants.drop_path_depths)]

    @property
    def _stages(self) -> list[StageT]:
        return cast(list[StageT], list(self.stages))

    def check_stages(self, arch: Arch) -> None:
        """Raises: UserError: the arch has another number of stages."""
        stages = sum(name.endswith(".width") for name in arch)
        if stages != len(self.stages):
            raise UserError(f"the arch has {stages} stages, the supernet {len(self.stages)}")

    def select_stages(self, shapes: Iterable[Any]) -> dict[str, dict[str, Tensor]]:
        """The acting part of every stage's parameters, by the stage's name."""
        return {
            f"stages.{i}": stage.select(shape)
            for i, (stage, shape) in enumerate(zip(self._stages, shapes, strict=True))
        }

    def draw_paths(self, x: Tensor, archs: Sequence[Arch]) -> Tensor | None:
        """[places of all stages, 2, batch]: 0 for a dropped branch, else 1 / (1 - rate); None if nothing is dropped.

        The rate rises linearly over the places that the constant `drop_path_depths` counts, whatever the arch. The draw
        depends on the batch size alone, so that groups, masks and passes of one arch agree under the same random state.
        """
        return drop_branches(x, self.drop_path, self.ramp[-1]) if self.training else None

    def stage_paths(self, paths: Tensor | None, stage: int) -> Tensor | None:
        """What `draw_paths` gave for the places of one stage."""
        return None if paths is None else paths[self.ramp[stage] : self.ramp[stage + 1]]
