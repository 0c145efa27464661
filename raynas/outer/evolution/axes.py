"""The axes of a space: what moves together when it evolves, and which archs have which of an axis's choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raynas.errors import ConfigError
from raynas.space import Choice, Codes, Space
from raynas.space.definition import rule_of
from raynas.text import nearest

Blocks = Literal["most", "any", "apart"]


@dataclass(frozen=True)
class Axis:
    """One dimension of one stage: the same dimension of all its blocks.

    Attributes:
        name: its template, `stages.2.blocks.*.heads`; where the blocks of a stage have different choices, those with
            the same ones are named: `stages.2.blocks.0,1.heads`.
        members: names of the space's dimensions.
        choices: of each of them, in ascending cost.
        descending: whether smaller values cost more (patch size).
    """

    name: str
    members: tuple[str, ...]
    choices: tuple[Choice, ...]
    descending: bool

    @property
    def names(self) -> tuple[str, str, str]:
        """What settings may call it, the most exact first: by its stage, by its dimension in any stage, by its leaf."""
        everywhere = ".".join("*" if part.replace(",", "").isdigit() else part for part in self.name.split("."))
        return self.name, everywhere, self.name.rpartition(".")[2]

    def places(self, space: Space, codes: Codes, per: Literal["choice", "value"]) -> np.ndarray:
        """Where each arch stands on the line that is fitted, rising with the cost: the mean over its blocks, float [n].

        Args:
            space: the axis's space.
            codes: of archs [n, dimensions]; NaN where no member acts.
            per: see `SpaceEvolutionConfig`.
        """
        line = np.arange(len(self.choices), dtype=float)
        if per == "value":
            line = (-1.0 if self.descending else 1.0) * np.array(self.choices, dtype=float)
        columns = codes[:, [space.index(name) for name in self.members]]
        with np.errstate(invalid="ignore"):
            return np.where(columns >= 0, line[columns], 0.0).sum(axis=1) / (columns >= 0).sum(axis=1)

    def belongs(self, space: Space, codes: Codes, blocks: Blocks) -> np.ndarray:
        """Which archs are in the sub-space of each choice.

        Args:
            space: the axis's space.
            codes: of archs [n, dimensions].
            blocks: see `SpaceEvolutionConfig`. By `most`, an arch with a tie is in each of the tied sub-spaces.

        Returns:
            bool [choices, n]; an arch in which no member acts is in none.
        """
        columns = codes[:, [space.index(name) for name in self.members]]
        counts = np.stack([(columns == code).sum(axis=1) for code in range(len(self.choices))])
        return (counts > 0) if blocks == "any" else (counts > 0) & (counts == counts.max(axis=0))


def axes_of(space: Space, blocks: Blocks = "most") -> list[Axis]:
    """Every axis of a space that could move: of numbers; what is kept or dropped, true or false, has nowhere to go."""
    groups: dict[tuple[str, tuple[Choice, ...]], list[str]] = {}
    for dimension in space.dimensions:
        if not isinstance(dimension.choices[0], bool):
            template = dimension.name if blocks == "apart" else dimension.template
            groups.setdefault((template, dimension.choices), []).append(dimension.name)
    templates = [template for template, _ in groups]
    found = []
    for (template, choices), members in groups.items():
        name = template
        if templates.count(template) > 1:
            before, _, after = template.partition("blocks.*.")
            numbers = [member.removeprefix(before).split(".")[1] for member in members]
            name = f"{before}blocks.{','.join(numbers)}.{after}"
        rule = rule_of(space.family, members[0])
        assert rule is not None
        found.append(Axis(name, tuple(members), choices, rule.descending))
    return found


def step_of(axis: Axis, steps: Mapping[str, float]) -> float:
    """The size of an axis's step: as settings say, else the smallest distance between its choices; 0 for none.

    Raises:
        ConfigError: whole numbers cannot move by it.
    """
    given = next((steps[name] for name in axis.names if name in steps), None)
    if given is None:
        values = sorted(axis.choices)
        return float(min(np.diff(values).round(9), default=0))
    if isinstance(axis.choices[0], int) and given != int(given):
        raise ConfigError(f"steps: {axis.name} has whole numbers, which cannot move by {given:g}")
    return float(given)


def check_steps(space: Space, steps: Mapping[str, float], blocks: Blocks) -> None:
    """Refuse steps of what the space does not have, or of the wrong kind.

    Raises:
        ConfigError: with the nearest name that there is.
    """
    axes = axes_of(space, blocks)
    known = list(dict.fromkeys(name for axis in axes for name in axis.names))
    for name in steps:
        if name not in known:
            raise ConfigError(f"steps: no dimension {name!r} to move{nearest(name, known)}")
    for axis in axes:
        step_of(axis, steps)
