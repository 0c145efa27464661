"""The archs of a space as paths through tables, for exact spans and windows of a cost.

A cost is a sum of terms, each of a few choices, so the archs, up to 1e40, need not be enumerated. A chain processes the
terms in order and remembers only the choices that a later term needs (such as a stage's width). Each combination of
them is a *row*. A *step* makes a table of rows. Every row has alternatives, the choices settled in this step; each
alternative continues a row of an earlier table, with a cost and a probability.

A choice that switches others on (`depth`, `kept`) is settled by a step whose alternatives continue different tables:
the ones after the blocks that it activates. Depths share the tables of their common blocks, so a stage of 20 blocks
has 20 tables rather than one for each depth and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raynas.space import Distribution


@dataclass(frozen=True)
class Step:
    """A table of rows and their alternatives.

    Attributes:
        first: number of the table's first row; rows are numbered through the whole chain.
        sources: number of the row that each alternative continues, [rows, alternatives].
        costs: cost of each alternative, int64 [rows, alternatives].
        weights: probability of each alternative, [rows, alternatives].
        dimensions: the dimensions settled by this step.
        codes: each alternative's codes of these dimensions, int16 [alternatives, dimensions].
    """

    first: int
    sources: np.ndarray
    costs: np.ndarray
    weights: np.ndarray
    dimensions: tuple[int, ...]
    codes: np.ndarray

    @property
    def rows(self) -> slice:
        """The numbers of the table's rows in the chain."""
        return slice(self.first, self.first + len(self.sources))


@dataclass(frozen=True)
class Chain:
    """One cost of a distribution of archs; an arch is a path from a last row back to row 0, the empty arch.

    Attributes:
        steps: the tables in order; every alternative continues an earlier one (or row 0).
        last: the rows of the last table.
        dimensions: the dimensions in which the last rows differ.
        codes: the last rows' codes of these dimensions, int16 [last rows, dimensions].
    """

    distribution: Distribution
    steps: tuple[Step, ...]
    last: slice
    dimensions: tuple[int, ...]
    codes: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows of all tables, including row 0."""
        return self.last.stop

    @cached_property
    def least(self) -> np.ndarray:
        """The least cost of each row's (partial) archs, int64 [rows]."""
        least = np.zeros(self.rows, dtype=np.int64)
        for step in self.steps:
            least[step.rows] = (least[step.sources] + step.costs).min(axis=1)
        return least

    @cached_property
    def excess(self) -> tuple[np.ndarray, ...]:
        """Cost of each step's alternatives above the row's cheapest, int64 [rows, alternatives].

        An arch's cost is the `least` of its last row plus the excesses along its path.
        """
        return tuple(self.least[step.sources] + step.costs - self.least[step.rows, None] for step in self.steps)

    @cached_property
    def reach(self) -> np.ndarray:
        """The greatest cost of each row's archs, counted from its least, int64 [rows]."""
        reach = np.zeros(self.rows, dtype=np.int64)
        for step, excess in zip(self.steps, self.excess, strict=True):
            reach[step.rows] = (reach[step.sources] + excess).max(axis=1)
        return reach

    @cached_property
    def lattice(self) -> np.ndarray:
        """A common divisor of each row's costs above its least, int64 [rows]; 0 if they are all equal."""
        lattice = np.zeros(self.rows, dtype=np.int64)
        for step, excess in zip(self.steps, self.excess, strict=True):
            lattice[step.rows] = np.gcd.reduce(np.gcd(lattice[step.sources], excess), axis=1)
        return lattice

    def span(self) -> tuple[int, int]:
        """Return the least and the greatest cost of an arch."""
        least = self.least[self.last]
        return int(least.min()), int((least + self.reach[self.last]).max())
