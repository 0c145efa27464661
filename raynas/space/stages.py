"""Vocabulary common to staged families: `stages.*.depth` or `stages.*.blocks.*.kept` select the blocks that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field

from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.dimension import Dimension
from raynas.space.rules import CommonConstants, Family, Rule, with_attention_scale


class StagedConstants(CommonConstants):
    """Constants common to staged families.

    Attributes:
        drop_path_depths: number of each stage's blocks in the ramp of the drop-path rate, which rises linearly from 0
            over all stages; by default the most blocks. A shallower stage leaves out steps of the ramp. Layers between
            stages are never dropped (a hybrid's first layers are blocks themselves).
    """

    drop_path_depths: tuple[Annotated[int, Field(ge=0, le=256)], ...] | None = None


ConstantsT = TypeVar("ConstantsT", bound=StagedConstants)


def with_defaults(constants: ConstantsT, dimensions: tuple[Dimension, ...]) -> ConstantsT:
    """Return the constants with defaults filled in: the ramp of drop-path rates, and the scale of attention."""
    depths = constants.drop_path_depths
    ramp = {"drop_path_depths": most_blocks(dimensions) if depths is None else depths}
    return with_attention_scale(constants).model_copy(update=ramp)


def staged_family(block: Mapping[str, Rule], resolve: Callable[..., Any] = with_defaults, **others: Any) -> Family:
    """Return the vocabulary of a staged family, given the rules for a block's dimensions; `others` are for `Family`.

    If heads have a fixed width (`head_dim`), they determine the query width, which is then no dimension.
    """
    dimensions = {
        "stages.*.width": Rule(int, 1, 2**15),
        "stages.*.depth": Rule(int, 0, 256),
        "stages.*.blocks.*.kept": Rule(bool, 0, 1),
        **{f"stages.*.blocks.*.{leaf}": rule for leaf, rule in block.items()},
    }

    def required(constants: Any, given: set[str]) -> list[str]:
        runs = "stages.*.blocks.*.kept" if "stages.*.blocks.*.kept" in given else "stages.*.depth"
        leaves = [leaf for leaf in block if leaf != "query_width" or constants.head_dim is None]
        return ["stages.*.width", runs, *(f"stages.*.blocks.*.{leaf}" for leaf in leaves)]

    return Family(dimensions=dimensions, resolve=resolve, required=required, **others)


def check_stages(space: CodedSpace, listed: Sequence[str] = ()) -> Iterator[tuple[Location, str]]:
    """Yield faults of constants with one value for each stage: `drop_path_depths` and those listed."""
    constants, most = space.constants, most_blocks(space.dimensions)
    for name in (*listed, "drop_path_depths"):
        if len(getattr(constants, name)) != len(most):
            yield ("constants", name), f"needs one value for each of the {len(most)} stages"
    for stage, (blocks, ramp) in enumerate(zip(most, constants.drop_path_depths, strict=True)):
        if blocks > ramp:
            yield ("constants", "drop_path_depths"), f"counts {ramp} blocks in stage {stage}, which has up to {blocks}"


def most_blocks(dimensions: Iterable[Dimension]) -> tuple[int, ...]:
    """Return the largest number of blocks of each stage."""
    most: dict[int, int] = {}
    for dimension in dimensions:
        if not dimension.name.startswith("stages."):
            continue
        stage, leaf = int(dimension.name.split(".")[1]), dimension.name.rpartition(".")[2]
        most.setdefault(stage, 0)
        if leaf == "depth":
            most[stage] = max(dimension.choices)
        elif leaf == "kept":
            most[stage] += 1
    return tuple(most[stage] for stage in sorted(most))


def running(arch: Mapping[str, Any], stage: int) -> list[int]:
    """Return the indices of the blocks that an arch runs in a stage."""
    depth = f"stages.{stage}.depth"
    if depth in arch:
        return list(range(int(arch[depth])))
    kept = {
        name: value for name, value in arch.items() if name.startswith(f"stages.{stage}.") and name.endswith(".kept")
    }
    return [int(name.split(".")[3]) for name, value in kept.items() if value]
