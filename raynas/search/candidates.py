"""New feasible archs for a search, without repeats."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property

import numpy as np

from raynas.costs.bins import FEW_CELLS
from raynas.costs.sampling import Bound, narrowest_bound, sample_within
from raynas.costs.window import Window
from raynas.errors import InfeasibleError
from raynas.search.problem import Problem
from raynas.space import Codes, Distribution
from raynas.space.codes import Uniform

ENUMERABLE = 20_000
"""Spaces of at most this many archs are enumerated to decide if they are exhausted."""

_ROUNDS = 7

_COSTED = 1024
"""Candidates that are costed at a time."""

logger = logging.getLogger("raynas.search")


class Candidates:
    """The feasible archs of a space that have not been taken yet."""

    def __init__(self, problem: Problem, rng: np.random.Generator, uniform_over: Uniform):
        self.problem = problem
        self.space = problem.space
        self._rng = rng
        self._uniform_over = uniform_over
        self._taken: set[bytes] = set()

    def __len__(self) -> int:
        """Return the number of archs taken."""
        return len(self._taken)

    def take(self, codes: Codes, limit: int, tally: Counter[str] | None = None) -> Codes:
        """Take the first feasible and new rows, at most `limit`.

        Args:
            codes: candidates [n, dimensions].
            limit: the most rows to take.
            tally: counter of rows: `tried`, and of these `taken`, `repeated`, `infeasible`.
        """
        tally = Counter() if tally is None else tally
        rows: list[int] = []
        for index, row in enumerate(codes):
            if len(rows) == limit:
                break
            if index % _COSTED == 0:  # costs may be predictions, and most of the candidates may not be needed
                feasible = self.problem.constraints.feasible(codes[index : index + _COSTED])
            key = row.tobytes()
            tally["tried"] += 1
            if key in self._taken:
                tally["repeated"] += 1
            elif not feasible[index % _COSTED]:
                tally["infeasible"] += 1
            else:
                tally["taken"] += 1
                self._taken.add(key)
                rows.append(index)
        return codes[rows]

    def untaken(self, codes: Codes) -> np.ndarray:
        """Return True for each row that has not been taken yet, bool [n]."""
        return np.array([row.tobytes() not in self._taken for row in codes], dtype=bool)

    def check(self) -> None:
        """Check that some arch meets the constraints, without changing later draws.

        Raises:
            InfeasibleError: none does, or none was found; the message says which, and gives the space's span.
        """
        try:
            self._sample(np.random.default_rng(0), 1)
        except InfeasibleError as error:
            if not self.enumerable:
                raise
            if len(self._all_feasible) == 0:
                raise InfeasibleError(f"{error}; none of its {self.space.cardinality()} archs does") from error

    def random(self, n: int) -> Codes:
        """Take up to n random archs that are feasible and new.

        There are fewer only if the space has no more, or (in spaces too large to enumerate) if a bounded number of
        random draws finds no more.
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
        """Take feasible and new mutants if plain mutation hardly ever meets the constraints; otherwise none.

        Mutants have the distribution of `Space.mutate_codes` within the window of the narrowest bound.

        Args:
            probability, change: see `Space.mutate_codes`.
            tally: see `take`.
        """
        found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
        if self.narrow is not None and len(parents):
            for parent, wanted in zip(*np.unique(parents, axis=0, return_counts=True), strict=True):
                mutants = Distribution.of_mutants(self.space, parent, probability, change)
                window = Window(mutants, *self.narrow, cells=FEW_CELLS)
                with suppress(InfeasibleError):  # too rare to find
                    found.append(self.take(window.sample_codes(self._rng, tries * wanted), wanted, tally))
        return np.concatenate(found)

    @cached_property
    def narrow(self) -> Bound | None:
        """The bound that makes feasible archs rare, (cost, low, high); None if they are not rare."""
        return narrowest_bound(self.problem.constraints, self._uniform_over)

    def _sample(self, rng: np.random.Generator, n: int) -> Codes:
        return sample_within(self.space, self.problem.constraints, rng, n, self._uniform_over)

    def _draw(self, n: int) -> Codes:
        """Draw n random feasible archs, or fewer if they are too rare."""
        try:
            return self._sample(self._rng, n)
        except InfeasibleError:  # one by one, to keep those found before giving up
            found = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
            for _ in range(n):
                try:
                    found.append(self._sample(self._rng, 1))
                except InfeasibleError:
                    break
            return np.concatenate(found)

    @cached_property
    def enumerable(self) -> bool:
        """True if the space is small enough to enumerate."""
        return self.space.cardinality() <= ENUMERABLE

    @cached_property
    def _all_feasible(self) -> Codes:
        codes = self.space.encode(self.space.enumerate())
        return codes[self.problem.constraints.feasible(codes)]

    def exhausted(self) -> str:
        """Return the reason why there are no more archs, for the log."""
        if self.enumerable:
            return f"all {len(self)} archs that meet the constraints have been handed out"
        return f"no arch was found that meets the constraints and is not among the {len(self)} handed out"
