"""The archs of a space as paths through tables: what exact spans and windows of a cost are computed on.

A cost is a sum of terms that depend on a few choices each, so that the archs, of which there may be 1e40, need not be
looked at one by one. A chain goes through the terms in their order and keeps of the choices made so far those alone
that a later term asks for (a stage's width, say). Each combination of them is a *row*. A *step* makes a table of rows:
every row has some alternatives, the choices that are settled here, and each alternative goes on from a row of an
earlier table, at a cost and with a probability.

A choice that switches others on (a depth, a `kept`) is settled by a step whose alternatives go on from different
tables: those after the blocks that act under it. Depths share the tables of the blocks that they have in common, so
that a stage of 20 blocks has 20 tables, not one for each depth and block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from raynas.space import Distribution


@dataclass(frozen=True)
class Step:
    """A table of rows, and the alternatives that each is made of.

    Attributes:
        first: number of the table's first row; rows are numbered through the whole chain.
        sources: number of the row that each alternative goes on from, [rows, alternatives].
        costs: what each alternative costs, int64 [rows, alternatives].
        weights: its probability, [rows, alternatives].
        dimensions: which dimensions are settled.
        codes: how each alternative settles them, int16 [alternatives, dimensions].
    """

    first: int
    sources: np.ndarray
    costs: np.ndarray
    weights: np.ndarray
    dimensions: tuple[int, ...]
    codes: np.ndarray

    @property
    def rows(self) -> slice:
        """The rows' place among those of the chain."""
        return slice(self.first, self.first + len(self.sources))


@dataclass(frozen=True)
class Chain:
    """One cost of a distribution of archs. A path back from a last row to row 0, which is empty, is an arch.

    Attributes:
        distribution: the archs' distribution.
        steps: the tables in order; every alternative goes on from an earlier one (or from row 0).
        last: the rows of the last table.
        dimensions: what the last rows leave open: they differ in these choices,
        codes: namely in this way, int16 [last rows, dimensions].
    """

    distribution: Distribution
    steps: tuple[Step, ...]
    last: slice
    dimensions: tuple[int, ...]
    codes: np.ndarray

    @property
    def rows(self) -> int:
        """Number of rows of all tables, row 0 included."""
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
        """For each step what its alternatives cost beyond the cheapest, int64 [rows, alternatives].

        Costs are counted from each row's least: `least` of a row plus the excesses on the way to it.
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
        """A number that divides every cost counted from its row's least, int64 [rows]; 0 where all costs are equal."""
        lattice = np.zeros(self.rows, dtype=np.int64)
        for step, excess in zip(self.steps, self.excess, strict=True):
            lattice[step.rows] = np.gcd.reduce(np.gcd(lattice[step.sources], excess), axis=1)
        return lattice

    def span(self) -> tuple[int, int]:
        """The least and the greatest cost of an arch."""
        least = self.least[self.last]
        return int(least.min()), int((least + self.reach[self.last]).max())
