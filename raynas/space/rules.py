"""Types that define a family's vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from raynas.config import Config, added_field
from raynas.documents import Location
from raynas.space.codes import CodedSpace
from raynas.space.dimension import Choice, Dimension

MAX_TOKENS = 2**18
"""The most tokens of an image, or of a stage."""


@dataclass(frozen=True)
class Rule:
    """Constraint on the choices of one dimension.

    Attributes:
        type: `int`, `float` or `bool`.
        minimum: the smallest legal value; a float must also be above 0.
        maximum: the largest legal value: far beyond any use, so that costs always fit 64 bits.
        descending: True if a smaller value costs more (patch size); choices are listed in ascending cost.
    """

    type: type
    minimum: float
    maximum: float
    descending: bool = False


class CommonConstants(Config):
    """Constants common to all families: channel sharing (see `raynas.nets.sharing`) and the token head.

    Attributes:
        sharing: `ordinal` gives each width the first channels; `bilateral` trains a left and a right path, and scores
            the mean of their logits; `cyclic` gives each width an interval that wraps around.
        groups: for `cyclic`, the number of groups that an axis is divided into.
        token_head: True to add a second classifier, of every patch token after the final norm. It learns from token
            labels in training; scores do not use it. Its parameters count, its MACs do not.
        distillation_token: True to add DeiT's distillation token behind the class token, with a classifier of its own,
            which learns from external teachers in training. The logits of a network are the mean of both classifiers'.
    """

    sharing: Literal["ordinal", "bilateral", "cyclic"] = "ordinal"
    groups: int | None = Field(None, ge=1, le=48)
    token_head: bool = False
    distillation_token: bool = added_field(False)

    @model_validator(mode="before")
    @classmethod
    def _ten_groups(cls, data: Any) -> Any:
        """Default to ten groups, as in the paper."""
        if not isinstance(data, dict):
            return data
        if data.get("sharing") == "cyclic":
            return {**data, "groups": 10 if data.get("groups") is None else data["groups"]}
        if data.get("groups") is not None and data.get("sharing", "ordinal") in ("ordinal", "bilateral"):
            raise ValueError("groups are for sharing: cyclic alone")
        return data


ConstantsT = TypeVar("ConstantsT", bound=CommonConstants)


def scaled(constants: Any, arch: Mapping[str, Choice], factor: float) -> tuple[Any, dict[str, Choice]]:
    """Multiply embedding, head (or query) and hidden widths by `factor`, rounded to legal values; keep the rest."""
    values = dict(arch)
    for name, value in arch.items():
        block, _, leaf = name.rpartition(".")
        if leaf in ("width", "mlp_width", "query_width"):
            unit = arch[f"{block}.heads"] if leaf == "query_width" else 1
            values[name] = unit * max(1, round(value * factor / unit))
    if (before := getattr(constants, "head_dim", None)) is not None:
        head_dim = max(1, round(before * factor))
        # A scale other than the default keeps its ratio to the default.
        scale = constants.attention_scale * (before / head_dim) ** 0.5
        constants = constants.model_copy(update={"head_dim": head_dim, "attention_scale": scale})
    return constants, values


def with_attention_scale(constants: ConstantsT) -> ConstantsT:
    """Return the constants with the default scale of attention filled in, if the width of a head is fixed."""
    known: Any = constants
    if known.attention_scale is not None or known.head_dim is None:
        return constants
    return constants.model_copy(update={"attention_scale": known.head_dim**-0.5})


@dataclass(frozen=True)
class Family:
    """A family's vocabulary.

    Attributes:
        constants: model of the constants of a whole space.
        dimensions: every dimension's template and rule, e.g. `{"blocks.*.heads": Rule(int, 1, 1024)}`.
        resolve: fills in constants whose defaults depend on the space, given constants and dimensions. It runs once,
            when a space is read, so that a forward pass never depends on choices that were not taken.
        check: yields faults that the family cannot build: the place in the space file, and the problem. Only the first
            is reported.
        scale: returns constants and values of an arch with widths multiplied by a factor, given both and the factor
            (see `raynas.costs.scale_to_macs`); by default all of its widths.
        required: returns the dimensions that a space must have, and no others, given its constants and the templates
            that it names. None: all of them.
        acting: returns an arch's effective values, equal for choices that give the same network, given its space and
            its values (see `Arch.network_id`). None: the values themselves.
    """

    constants: type[Config]
    dimensions: dict[str, Rule]
    resolve: Callable[[Any, tuple[Dimension, ...]], Any]
    check: Callable[[CodedSpace], Iterator[tuple[Location, str]]]
    scale: Callable[[Any, Mapping[str, Choice], float], tuple[Any, dict[str, Choice]]] = scaled
    required: Callable[[Any, set[str]], list[str]] | None = None
    acting: Callable[[CodedSpace, Mapping[str, Choice]], dict[str, Choice]] | None = None


def check_no_distillation_token(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    """Yield the fault of a distillation token in a family without a class token."""
    if space.constants.distillation_token:
        why = f"stands beside a class token, which family {space.family} does not have (vit and vit_res do)"
        yield ("constants", "distillation_token"), why


def check_blocks(space: CodedSpace) -> Iterator[tuple[Location, str]]:
    """Yield faults of query widths that a head count does not divide, and of MLP ratios without a hidden channel."""
    for dimension in space.dimensions:
        block, _, leaf = dimension.name.rpartition(".")
        parts = block.split(".")
        staged = parts[0] == "stages"
        place: Location = ("dimensions", "stages", int(parts[1]), "blocks") if staged else ("dimensions", parts[0])
        if leaf == "query_width":
            for query, heads in product(dimension.choices, space[f"{block}.heads"].choices):
                if query % heads:
                    yield place, f"query_width {query} cannot be cut into {heads} heads"
        elif leaf == "mlp_ratio":
            width = f"stages.{parts[1]}.width" if staged else "width"
            if hidden_width(min(space[width].choices), min(dimension.choices)) < 1:
                yield place, "the smallest width times the smallest mlp_ratio leaves no hidden channel"


def ratio_of(width: int, hidden: int) -> float:
    """Return the ratio that gives exactly this hidden width, despite rounding."""
    ratio = hidden / width
    return ratio if hidden_width(width, ratio) == hidden else math.nextafter(ratio, math.inf)


def hidden_width(width: Any, ratio: Any) -> Any:
    """Return the hidden channels of an MLP, floor(width x ratio): an int for numbers, int64 for arrays."""
    product = np.floor(np.multiply(width, ratio))
    return int(product) if np.ndim(product) == 0 else product.astype(np.int64)
