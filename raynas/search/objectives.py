"""What a search makes large or small, and how scores are read and compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from raynas.costs import COSTS
from raynas.errors import UserError
from raynas.search.config import Direction

Score = float | Mapping[str, Any] | None
"""What a scorer says of one arch: the one scored objective, a mapping with the objectives' names, or None (failed)."""


class Objectives:
    """Named objectives with their directions.

    Attributes:
        directions: `max` or `min` by name.
        names: the names, in order.
        scored: those that a scorer must return; the rest are costs of the arch.
    """

    def __init__(self, directions: Mapping[str, Direction], costs: Iterable[str] = COSTS):
        """Args:
            directions: `max` or `min` by name.
            costs: names of what the search computes itself.

        Raises:
            UserError: there is no objective, or a direction is neither `max` nor `min`.
        """
        if not directions:
            raise UserError("a search needs an objective, such as {'accuracy': 'max'}")
        for name, direction in directions.items():
            if direction not in ("max", "min"):
                raise UserError(f"objective {name!r}: the direction is 'max' or 'min', not {direction!r}")
        self.directions = dict(directions)
        self.names = list(directions)
        computed = set(costs)
        self.scored = [name for name in directions if name not in computed]
        self._signs = np.array([-1.0 if direction == "max" else 1.0 for direction in directions.values()])

    def read(self, score: Score, costs: Mapping[str, float]) -> dict[str, float] | None:
        """One arch's objectives by name; None if the arch failed (None, NaN, infinite, or `status: failed`).

        Raises:
            UserError: the score lacks an objective, or is not a score.
        """
        if score is None:
            return None
        if isinstance(score, Mapping):
            if score.get("status") == "failed":
                return None
            for name in self.scored:
                if name not in score:
                    raise UserError(f"a score says nothing of objective {name!r}; it has {', '.join(map(repr, score))}")
            scored = {name: score[name] for name in self.scored}
        elif len(self.scored) > 1:
            raise UserError(f"a score must be a mapping with {', '.join(self.scored)}; {score!r} is not")
        else:
            scored = {name: score for name in self.scored}
        values = {name: _number(name, scored[name]) if name in scored else costs[name] for name in self.names}
        return values if all(math.isfinite(value) for value in values.values()) else None

    def loss(self, score: Score) -> float | None:
        """The loss that a score has, which decides between equals; None where it has none."""
        value = score.get("loss") if isinstance(score, Mapping) else None
        return float(value) if isinstance(value, int | float | np.number) and math.isfinite(value) else None

    def minimised(self, values: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Objective values as float64 [n, objectives], signed so that smaller is better everywhere."""
        table = [[value[name] for name in self.names] for value in values]
        return self._signs * np.array(table, dtype=np.float64).reshape(len(table), len(self.names))


def _number(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"the score of objective {name!r} must be a number or None, not {value!r}") from None


def non_dominated(minimised: np.ndarray) -> np.ndarray:
    """Mask [n] of the rows of [n, objectives] that no other row beats; equal rows do not beat each other."""
    keep = np.zeros(len(minimised), dtype=bool)
    # In lexicographic order a row can only be beaten by one before it, so the first one left is never beaten.
    left = np.lexsort(minimised.T[::-1])
    while len(left):
        best, others = minimised[left[0]], minimised[left[1:]]
        keep[left[0]] = True
        left = left[1:][~(np.all(best <= others, axis=1) & np.any(best < others, axis=1))]
    return keep
