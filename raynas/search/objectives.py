"""Objectives of a search, and the reading and comparison of scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from raynas.costs import COSTS
from raynas.errors import UserError
from raynas.text import shown

Direction = Literal["max", "min"]

Score = float | Mapping[str, Any] | None
"""A scorer's result for one arch: the one scored objective, a mapping by objective, or None (failed)."""


LARGEST_SCORE = 1e30
"""Limit in both directions, since searches square differences of scores, which must stay finite."""


class Stopped(NamedTuple):
    """The result of an arch that was stopped early.

    Attributes:
        accuracy: accuracy on the images that it was scored on; None without images.
        images: number of these images.
        by: the judge that stopped it: `accuracy`, or a training-free score.
    """

    accuracy: float | None
    images: int
    by: str = "accuracy"


class Objectives:
    """Named objectives with their directions.

    Attributes:
        directions: `max` or `min` by name.
        names: the names, in order.
        scored: the objectives that a scorer must return; the rest are costs of the arch.
    """

    def __init__(self, directions: Mapping[str, Direction], costs: Iterable[str] = COSTS):
        """Build objectives.

        Args:
            directions: `max` or `min` by name.
            costs: names of costs that the search computes itself.

        Raises:
            UserError: there is no objective, or a direction is neither `max` nor `min`.
        """
        if not isinstance(directions, Mapping) or not directions:
            raise UserError(f"a search needs an objective such as {{'accuracy': 'max'}}, not {shown(directions)}")
        for name, direction in directions.items():
            if not isinstance(name, str) or not name:
                raise UserError(f"an objective has a name, such as accuracy, not {shown(name)}")
            if direction not in ("max", "min"):
                raise UserError(f"objective {name!r}: the direction is 'max' or 'min', not {direction!r}")
        self.directions = dict(directions)
        self.names = list(directions)
        computed = set(costs)
        self.scored = [name for name in directions if name not in computed]
        self._signs = np.array([-1.0 if direction == "max" else 1.0 for direction in directions.values()])

    def read(self, score: Score, costs: Mapping[str, float]) -> dict[str, float] | None:
        """Return one arch's objectives by name; None if it failed (None, NaN, infinite, or `status: failed`).

        They are also None if it was stopped early (`status: stopped`).

        Raises:
            UserError: the score lacks an objective, or is not a number or mapping.
        """
        if score is None:
            return None
        if isinstance(score, Mapping):
            if score.get("status") in ("failed", "stopped"):
                return None
            for name in self.scored:
                if name not in score:
                    raise UserError(f"a score lacks objective {name!r}; it has {', '.join(map(repr, score))}")
            scored = {name: score[name] for name in self.scored}
        elif len(self.scored) > 1:
            raise UserError(f"a score must be a mapping with {', '.join(self.scored)}; {score!r} is not")
        else:
            scored = {name: score for name in self.scored}
        values = {name: _number(name, scored[name]) if name in scored else costs[name] for name in self.names}
        return values if all(math.isfinite(value) for value in values.values()) else None

    def loss(self, score: Score) -> float | None:
        """Return a score's loss, which decides between equal scores; None if it has none."""
        value = score.get("loss") if isinstance(score, Mapping) else None
        return float(value) if isinstance(value, int | float | np.number) and math.isfinite(value) else None

    def minimised(self, values: Sequence[Mapping[str, float]]) -> np.ndarray:
        """Return objective values as float64 [n, objectives], signed so that smaller is better."""
        table = [[value[name] for name in self.names] for value in values]
        return self._signs * np.array(table, dtype=np.float64).reshape(len(table), len(self.names))

    def minimised_costs(self, costs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the same of the objectives that are costs, at least one, from the costs of n archs, [n] each."""
        places = [place for place, name in enumerate(self.names) if name not in self.scored]
        columns = [costs[self.names[place]] for place in places]
        return self._signs[places] * np.stack(columns, axis=1).astype(np.float64)


def stopped(score: Score) -> Stopped | None:
    """Return what is known of an arch that was stopped early; None for any other."""
    if not isinstance(score, Mapping) or score.get("status") != "stopped":
        return None
    accuracy = score["accuracy"]
    return Stopped(None if accuracy is None else float(accuracy), int(score["images"]), score.get("by", "accuracy"))


def _number(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        if isinstance(value, bool | np.bool_ | str | bytes):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"the score of objective {name!r} must be a number or None, not {shown(value)}") from None
    if math.isfinite(number) and abs(number) > LARGEST_SCORE:
        raise UserError(f"the score of objective {name!r} must be at most {LARGEST_SCORE:g}, not {number:g}")
    return number


def non_dominated(minimised: np.ndarray) -> np.ndarray:
    """Return a mask [n] of the non-dominated rows of [n, objectives]; equal rows do not dominate each other."""
    keep = np.zeros(len(minimised), dtype=bool)
    # In lexicographic order a row can only be dominated by an earlier one, so the first one left never is.
    left = np.lexsort(minimised.T[::-1])
    if len(left) and minimised.shape[1] <= 2:  # undominated if the last objective is lower than in any earlier row
        ordered = minimised[left]
        lowest = np.minimum.accumulate(ordered[:, -1])
        new = np.append(True, ordered[1:, -1] < lowest[:-1])
        equal = np.append(False, (ordered[1:] == ordered[:-1]).all(axis=1))
        # The latest row that is not equal to the one before it decides for those that are.
        keep[left] = new[np.maximum.accumulate(np.where(equal, 0, np.arange(len(left))))]
        return keep
    while len(left):
        best, others = minimised[left[0]], minimised[left[1:]]
        keep[left[0]] = True
        left = left[1:][~(np.all(best <= others, axis=1) & np.any(best < others, axis=1))]
    return keep
