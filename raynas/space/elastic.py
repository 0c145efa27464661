"""Elastic spaces: a network becomes the largest arch of a space whose other archs use its first units.

The supernet of such a space has the network's parameters, by name and shape, so it starts from trained weights; order
its units by importance first (`raynas.nets.ordering`), because narrow archs keep the first ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from raynas.config import Config
from raynas.errors import UserError
from raynas.space.definition import write_dimensions
from raynas.space.dimension import Choice, Dimension
from raynas.space.families import family_module
from raynas.space.rules import hidden_width
from raynas.space.space import Space
from raynas.space.values import without_dropped
from raynas.text import shown

Shares = tuple[Annotated[float, Field(gt=0, le=1)], ...]
"""Parts of the network's own number, beside the whole."""


class Elastic(Config):
    """Choices of an elastic space, as parts of what the network has; the whole is always one of them.

    Attributes:
        width: channels of the residual stream, of each stage for itself.
        heads: attention heads of each block.
        mlp: hidden channels of each block's MLP; where these are a ratio, they shrink with the width as well.
        window: side of each block's windows (s3 alone).
        dropped: share of the blocks that may be left out, each for itself; every stage keeps a block.
        divisor: widths and hidden channels are rounded to multiples of it.
    """

    width: Shares = (0.5, 0.75)
    heads: Shares = (0.25, 0.5, 0.75)
    mlp: Shares = (0.25, 0.5, 0.75)
    window: Shares = ()
    dropped: float = Field(0.25, ge=0, lt=1)
    divisor: int = Field(8, ge=1, le=1024)


@dataclass(frozen=True)
class Whole:
    """A network in the form in which its space is made elastic; `whole` of a family's module `elastic` returns it.

    Attributes:
        constants: those of the space, where they differ from the network's own.
        values: the network's choices by dimension; blocks run by `kept`.
        held: options of `Elastic` that this network cannot have, and why.
        least: smallest legal choices of dimensions, where something else than the family's rules sets them.
    """

    constants: Mapping[str, Any]
    values: Mapping[str, Choice]
    held: Mapping[str, str] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)


_OPTIONS = {"width": "width", "heads": "heads", "mlp_width": "mlp", "mlp_ratio": "mlp", "expansion": "mlp"}
_OPTIONS |= {"window": "window", "kept": "dropped", "depth": "dropped"}
"""The option that says which choices a dimension gets, by the last part of its name; other dimensions stay as is."""


def elastic_space(space: Space, choices: Elastic | None = None, order: Sequence[str] = ()) -> Space:
    """Return the space whose largest arch is a network, and whose other archs use its first units.

    Args:
        space: the network's one-point space.
        choices: how elastic; by default `Elastic()`.
        order: blocks by importance, the least important first, such as `blocks.3` or `stages.2.blocks.0`, to choose
            those that may be left out (see `raynas.nets.ordering.block_importance`). By default every second block,
            from the last but one to the front.

    Raises:
        UserError: the space has more than one arch, or the network cannot be elastic in that way: the message says in
            which and why.
    """
    choices = choices or Elastic()
    if space.cardinality() > 1:
        raise UserError(f"space {space.name} has {space.cardinality()} archs: a network is made elastic, so fix one")
    whole = _whole(space)
    _check_options(space, choices, whole)
    may_go = _droppable(whole.values, choices.dropped, order)
    listed = {
        name: _choices(name, value, choices, whole.least.get(name, 1), may_go) for name, value in whole.values.items()
    }
    for name in [name for name in listed if name.endswith("mlp_ratio")]:  # a hidden channel is left at any width
        narrowest = min(listed[re.sub(r"(blocks\.\d+\.)?mlp_ratio$", "width", name)])
        listed[name] = tuple(c for c in listed[name] if hidden_width(narrowest, c) or c == whole.values[name])
    definition = space.to_dict()
    constants = definition["constants"] | {"sharing": "ordinal", "groups": None, **whole.constants}
    definition["constants"] = {name: value for name, value in constants.items() if not name.startswith("drop_path_")}
    definition["dimensions"] = write_dimensions(Dimension(name, found) for name, found in listed.items())
    return Space.from_dict(definition, space.name)


def _whole(space: Space) -> Whole:
    try:
        whole: Whole = family_module(space.family, "elastic").whole(space)
    except ModuleNotFoundError as error:
        raise UserError(f"family {space.family} has no elastic spaces") from error
    return whole


def _check_options(space: Space, choices: Elastic, whole: Whole) -> None:
    """Refuse options that ask for what cannot be elastic in the network."""
    asked = {name for name, value in choices.model_dump().items() if name != "divisor" and value}
    there = {_OPTIONS.get(name.rpartition(".")[2]) for name in whole.values}
    held = {name: why for name, why in whole.held.items() if name in asked}
    held |= {n: "there is nothing of the kind" for n in asked & choices.model_fields_set if n not in there | set(held)}
    if held:
        listed = "; ".join(f"{name}: {why}" for name, why in held.items())
        options = " ".join(f"--set adapt.elastic.{name}={0 if name == 'dropped' else '[]'}" for name in held)
        raise UserError(f"{space.name} cannot be elastic in {listed}. Leave them as they are: {options}")


def _choices(name: str, value: Choice, choices: Elastic, least: int, may_go: Iterable[str]) -> tuple[Choice, ...]:
    """Return the choices of a dimension, the network's own last."""
    before, _, leaf = name.rpartition(".")
    option = _OPTIONS.get(leaf)
    if leaf == "kept":
        return (False, True) if before in may_go else (value,)
    if leaf == "depth":
        return tuple(range(max(least, value - math.floor(value * choices.dropped)), value + 1))
    if option is None:
        return (value,)
    shares: Shares = getattr(choices, option)
    if isinstance(value, float):
        return tuple(sorted({*(round(value * share, 4) for share in shares if share < 1), value}))
    divisor = choices.divisor if leaf in ("width", "mlp_width") else 1
    found = {max(1, round(value * share / divisor)) * divisor for share in shares}
    return (*sorted(each for each in found if least <= each < value), value)


def _droppable(values: Mapping[str, Choice], share: float, order: Sequence[str]) -> list[str]:
    """Return the blocks that may be left out, such as `blocks.3`, of those that the network runs.

    Raises:
        UserError: `order` names a block that it does not run.
    """
    running = running_blocks(values)
    if unknown := [block for block in order if block not in running]:
        raise UserError(f"the network has no block {shown(unknown[0])}: its blocks are {running[0]} to {running[-1]}")
    first = list(order) or [*running[-2::-2], *running[::-2]]
    left: dict[str, int] = {}
    for block in running:
        left[_stage(block)] = left.get(_stage(block), 0) + 1
    chosen: list[str] = []
    for block in first:
        if len(chosen) < math.floor(share * len(running)) and left[_stage(block)] > 1:
            left[_stage(block)] -= 1
            chosen.append(block)
    return chosen


def running_blocks(values: Mapping[str, Choice]) -> list[str]:
    """Return the blocks that run by `kept`, such as `blocks.3`."""
    return [name.removesuffix(".kept") for name, value in values.items() if name.endswith(".kept") and value]


def _stage(block: str) -> str:
    """Return what is in front of `blocks` in a block's name."""
    return block.partition("blocks.")[0]


def unrolled(values: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return an arch's values with `kept` for each block in place of every `depth`.

    Without any block there is a place in which none runs.
    """
    found: dict[str, Choice] = {}
    for name, value in values.items():
        if name.endswith("depth"):
            blocks = f"{name.removesuffix('depth')}blocks"
            found |= {f"{blocks}.{place}.kept": place < value for place in range(max(value, 1))}
        else:
            found[name] = value
    return found


def check_largest(space: Space, network: Space) -> None:
    """Check that a space, such as an edited file, has a network as its largest arch.

    Args:
        network: the network's one-point space.

    Raises:
        UserError: its largest arch is another network; the message names the first difference.
    """
    alone = elastic_space(network, Elastic(width=(), heads=(), mlp=(), dropped=0))
    found, wanted = space.largest(), alone.smallest()
    problems = list(alone.differences(space).values())
    if not problems and found.network_id != wanted.network_id:
        theirs, ours = without_dropped(found), without_dropped(wanted)
        differ = (name for name in {**ours, **theirs} if theirs.get(name) != ours.get(name))
        problems = [f"{name} {shown(theirs.get(name))}, not {shown(ours.get(name))}" for name in differ]
    if problems:
        raise UserError(
            f"the largest arch of space {space.name} must be the network {network.name}; it has {problems[0]}"
        )
