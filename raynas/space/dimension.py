"""One searchable choice of a network."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Choice = Any
"""An int, a float or a bool, according to the family's rule for the dimension."""


@dataclass(frozen=True)
class Dimension:
    """A searchable choice.

    Attributes:
        name: full name, e.g. `stages.2.blocks.5.heads`.
        choices: values in ascending cost, so that the first is the smallest and the last the largest network.
        parent: name of the dimension that switches this one on and off; None if it is always active.
        when: values of the parent for which this dimension is active.
    """

    name: str
    choices: tuple[Choice, ...]
    parent: str | None = None
    when: frozenset[Choice] = frozenset()

    @cached_property
    def template(self) -> str:
        """The name with its block index replaced by `*`: `stages.2.blocks.*.heads`."""
        return template_of(self.name)

    @cached_property
    def unit(self) -> str:
        """The unit of a block-wise crossover: `stages.2.blocks.5`, or the name itself outside blocks."""
        match = re.match(r"(?:.*\.)?blocks\.\d+(?=\.)", self.name)
        return match.group() if match else self.name

    def acts_under(self, chosen: Mapping[str, Choice]) -> bool:
        """Return True if this dimension is active, given the values chosen for the dimensions before it."""
        return self.parent is None or chosen.get(self.parent) in self.when


def template_of(name: str) -> str:
    """Return a dimension's name with its block index replaced by `*`."""
    return re.sub(r"(^|\.)blocks\.\d+\.", r"\1blocks.*.", name)


def same_kind(value: object, choice: Choice) -> bool:
    """Return True if both or neither are bools: Python has True == 1, but `heads: true` is a mistake."""
    return isinstance(value, bool) == isinstance(choice, bool)
