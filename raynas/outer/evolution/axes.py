"""Axes of a space: dimensions that move together in space evolution, and the archs that have each of their choices."""

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
        name: template such as `stages.2.blocks.*.heads`; if the blocks of a stage have different choices, the blocks
            with equal ones are listed: `stages.2.blocks.0,1.heads`.
        members: names of the space's dimensions.
        choices: choices of each member, in ascending cost.
        descending: True if smaller values cost more (patch size).
    """

    name: str
    members: tuple[str, ...]
    choices: tuple[Choice, ...]
    descending: bool

    @property
    def names(self) -> tuple[str, str, str]:
        """Names accepted in settings, the most exact first: in its stage, in any stage, the last part alone."""
        everywhere = ".".join("*" if part.replace(",", "").isdigit() else part for part in self.name.split("."))
        return self.name, everywhere, self.name.rpartition(".")[2]

    def places(self, space: Space, codes: Codes, per: Literal["choice", "value"]) -> np.ndarray:
        """Return each arch's abscissa in the line fit, ascending in cost: the mean over its blocks, float [n].

        NaN for archs in which no member acts.

        Args:
            codes: codes of the archs, [n, dimensions].
        """
        line = np.arange(len(self.choices), dtype=float)
        if per == "value":
            line = (-1.0 if self.descending else 1.0) * np.array(self.choices, dtype=float)
        columns = codes[:, [space.index(name) for name in self.members]]
        with np.errstate(invalid="ignore"):
            return np.where(columns >= 0, line[columns], 0.0).sum(axis=1) / (columns >= 0).sum(axis=1)

    def belongs(self, space: Space, codes: Codes, blocks: Blocks) -> np.ndarray:
        """Return the membership of archs in the sub-space of each choice.

        Args:
            codes: codes of the archs, [n, dimensions].
            blocks: see `SpaceEvolutionConfig`. With `most`, an arch with a tie is in each of the tied sub-spaces.

        Returns:
            bool [choices, n]; an arch in which no member acts is in none.
        """
        columns = codes[:, [space.index(name) for name in self.members]]
        counts = np.stack([(columns == code).sum(axis=1) for code in range(len(self.choices))])
        return (counts > 0) if blocks == "any" else (counts > 0) & (counts == counts.max(axis=0))


def axes_of(space: Space, blocks: Blocks = "most") -> list[Axis]:
    """Return the axes of a space that can move: those with numbers as choices, not booleans."""
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
    """Return an axis's step size: the configured one, else the smallest distance between its choices, or 0.

    Raises:
        ConfigError: a fractional step for whole numbers.
    """
    given = next((steps[name] for name in axis.names if name in steps), None)
    if given is None:
        values = sorted(axis.choices)
        return float(min(np.diff(values).round(9), default=0))
    if isinstance(axis.choices[0], int) and given != int(given):
        raise ConfigError(f"steps: {axis.name} has whole numbers, which cannot move by {given:g}")
    return float(given)


def check_steps(space: Space, steps: Mapping[str, float], blocks: Blocks) -> None:
    """Refuse configured steps of the wrong type, or for no axis of the space (the message has the nearest name)."""
    axes = axes_of(space, blocks)
    known = list(dict.fromkeys(name for axis in axes for name in axis.names))
    for name in steps:
        if name not in known:
            raise ConfigError(f"steps: no dimension {name!r} to move{nearest(name, known)}")
    for axis in axes:
        step_of(axis, steps)
