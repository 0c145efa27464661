"""Where a search gets new archs from: feasible, and never one twice."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property

import numpy as np

from raynas.costs import Constraints, sample_within
from raynas.costs.bins import FEW_CELLS
from raynas.costs.sampling import Bound, narrowest_bound
from raynas.costs.window import Window
from raynas.errors import InfeasibleError
from raynas.space import Codes, Distribution, Space
from raynas.space.space import Uniform

ENUMERABLE = 20_000
"""Spaces of at most this many archs are counted through before they are said to be exhausted."""

_ROUNDS = 7

logger = logging.getLogger("raynas.search")


class Candidates:
    """The feasible archs of a space that were not taken yet."""

    def __init__(self, space: Space, constraints: Constraints, rng: np.random.Generator, uniform_over: Uniform):
        self.space = space
        self.constraints = constraints
        self._rng = rng
        self._uniform_over = uniform_over
        self._taken: set[bytes] = set()

    def __len__(self) -> int:
        """Number of archs taken."""
        return len(self._taken)

    def take(self, codes: Codes, limit: int, tally: Counter[str] | None = None) -> Codes:
        """The first rows, `limit` at most, that are feasible and new; from now on they are taken.

        Args:
            tally: counts the rows looked at: `tried`, and of these `taken`, `repeated`, `infeasible`.
        """
        tally = Counter() if tally is None else tally
        feasible = self.constraints.feasible(codes)
        rows: list[int] = []
        for index, row in enumerate(codes):
            if len(rows) == limit:
                break
            key = row.tobytes()
            tally["tried"] += 1
            if key in self._taken:
                tally["repeated"] += 1
            elif not feasible[index]:
                tally["infeasible"] += 1
            else:
                tally["taken"] += 1
                self._taken.add(key)
                rows.append(index)
        return codes[rows]

    def untaken(self, codes: Codes) -> np.ndarray:
        """Which rows were not taken yet, bool [n]."""
        return np.array([row.tobytes() not in self._taken for row in codes], dtype=bool)

    def check(self) -> None:
        """Make sure that some arch meets the constraints; this changes no later draw.

        Raises:
            InfeasibleError: none does, or none was found; the message says which, and what the space spans.
        """
        try:
            sample_within(self.space, self.constraints, np.random.default_rng(0), 1, self._uniform_over)
        except InfeasibleError as error:
            if not self.enumerable:
                raise
            if len(self._all_feasible) == 0:
                raise InfeasibleError(f"{error}; none of its {self.space.cardinality()} archs does") from error

    def random(self, n: int) -> Codes:
        """Up to n random archs that are feasible and new.

        Fewer come back only if the space has no more of them, or (in spaces too large to be counted through) if a
        bounded number of random draws finds no more.
        """
        found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
        missing = n
        for attempt in range(_ROUNDS):
            if missing:
                found.append(self.take(self._draw(missing if attempt == 0 else 16 * 2**attempt), missing))
                missing -= len(found[-1])
        if missing and self.enumerable:
            found.append(self.take(self._rng.permutation(self._all_feasible), missing))
        return np.concatenate(found)

    def mutants(
        self,
        parents: Codes,
        probability: float | Mapping[str, float],
        change: bool,
        tries: int,
        tally: Counter[str],
    ) -> Codes:
        """Mutants, feasible and new, where mutation alone hardly ever meets the constraints; elsewhere none.

        Each parent's are drawn as `Space.mutate_codes` would, out of the window of the narrowest bound.

        Args:
            parents: a mutant is wanted of each row.
            probability, change: as of `Space.mutate_codes`.
            tries: draws for each mutant wanted.
            tally: as of `take`.
        """
        found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
        if self.narrow is not None and len(parents):
            for parent, wanted in zip(*np.unique(parents, axis=0, return_counts=True), strict=True):
                mutants = Distribution.of_mutants(self.space, parent, probability, change)
                window = Window(mutants, *self.narrow, cells=FEW_CELLS)
                with suppress(InfeasibleError):  # too few to be found
                    found.append(self.take(window.sample_codes(self._rng, tries * wanted), wanted, tally))
        return np.concatenate(found)

    @cached_property
    def narrow(self) -> Bound | None:
        """The bound that makes feasible archs rare, (cost, low, high); None where they are not."""
        return narrowest_bound(self.constraints, self._uniform_over)

    def _draw(self, n: int) -> Codes:
        """n random feasible archs; fewer where they are too rare to find so many."""
        try:
            return sample_within(self.space, self.constraints, self._rng, n, self._uniform_over)
        except InfeasibleError:  # one by one, so that those found before it gave up are not lost
            found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
            for _ in range(n):
                try:
                    found.append(sample_within(self.space, self.constraints, self._rng, 1, self._uniform_over))
                except InfeasibleError:
                    break
            return np.concatenate(found)

    @cached_property
    def enumerable(self) -> bool:
        """Whether the space is small enough to be counted through."""
        return self.space.cardinality() <= ENUMERABLE

    @cached_property
    def _all_feasible(self) -> Codes:
        codes = self.space.encode(self.space.enumerate())
        return codes[self.constraints.feasible(codes)]

    def exhausted(self) -> str:
        """Why there are no more, for the log."""
        if self.enumerable:
            return f"all {len(self)} archs that meet the constraints have been handed out"
        return f"no arch was found that meets the constraints and is not among the {len(self)} handed out"
