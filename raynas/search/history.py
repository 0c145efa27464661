"""The record of a search and its best archs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raynas.arguments import checked
from raynas.comparison import best_first
from raynas.errors import UserError
from raynas.search.objectives import Stopped, non_dominated
from raynas.search.problem import Problem
from raynas.space import Arch

HIGH_IS_GOOD = ("throughput",)
"""Costs for which higher values are better."""

FINALISTS = 10
"""Number of best archs to time, or to score again in fp32, at the end of a search with one objective."""


class Cut(NamedTuple):
    """The limit below which an arch is of no use to a search.

    Attributes:
        places: number of archs that the search goes on with, taken front by front.
        holders: archs with scores on all images that hold the places now, and perhaps others.
    """

    places: int
    holders: Sequence[Arch]


@dataclass(frozen=True)
class Evaluated:
    """One row of a search's history.

    Attributes:
        order: number of archs told before it.
        generation: the generation that it belongs to; 0 is the first.
        objectives: its objectives by name; None if scoring it failed or was stopped.
        costs: its costs by name.
        loss: the loss in its score; None if it has none.
        stopped: what is known of it if racing or a rung stopped it; else None.
    """

    order: int
    generation: int
    arch: Arch
    objectives: Mapping[str, float] | None
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)
    loss: float | None = field(default=None, compare=False)
    stopped: Stopped | None = None


class History:
    """The scored archs of a search, in order, and the best of them.

    Ties go to the lower constrained cost (MACs if nothing is constrained), then to the lower loss, then to the arch
    scored first; see `raynas.comparison`.

    Attributes:
        problem: the space, objectives and constraints, also as `space`, `objectives` and `constraints`.
        history: the scored archs in order.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.space, self.objectives, self.constraints = problem.space, problem.objectives, problem.constraints
        self.history: list[Evaluated] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.space.name}: {self.evaluations:,} archs told, {self.summary()})"

    def cut(self) -> Cut | None:
        """Return the limit below which the archs asked last are of no use to the search; None if every score counts."""
        return None

    @property
    def evaluations(self) -> int:
        """Number of archs told, failed ones included."""
        return len(self.history)

    def front(self) -> list[Evaluated]:
        """Return the rows of the history that no other dominates, in order."""
        good = self.scored()
        keep = non_dominated(self.objectives.minimised([row.objectives for row in good if row.objectives is not None]))
        return [row for row, kept in zip(good, keep, strict=True) if kept]

    @checked()
    def ranking(self, n: int) -> list[Evaluated]:
        """Return the best n rows, the best first; with several objectives the whole front, in order."""
        if len(self.objectives.names) > 1:
            return self.front()
        return self.best_first(self.scored())[:n]

    def best_first(
        self,
        rows: Iterable[Evaluated],
        objective: str | None = None,
        measured: Mapping[Arch, Mapping[str, float]] | None = None,
    ) -> list[Evaluated]:
        """Return the rows that did not fail, the best first.

        Args:
            rows: rows of the history.
            objective: the objective to compare by; by default the first.
            measured: costs measured later, by arch, which replace the predicted ones.
        """
        good = [row for row in rows if row.objectives is not None]
        name = objective or self.objectives.names[0]
        sign = -1 if self.objectives.directions[name] == "max" else 1
        costs = [{**row.costs, **(measured or {}).get(row.arch, {})} for row in good]
        scores = [
            sign * (found[name] if name in found and name not in self.objectives.scored else row.objectives[name])
            for row, found in zip(good, costs, strict=True)
            if row.objectives is not None
        ]
        dear = [
            [-each[cost] if cost in HIGH_IS_GOOD else each[cost] for each in costs] for cost in self.problem.tie_costs
        ]
        return [good[index] for index in best_first(scores, dear, [row.loss for row in good])]

    def best(self) -> Arch | list[Arch]:
        """Return the best arch; with several objectives the archs of the front.

        Raises:
            UserError: nothing was told, or every arch failed.
        """
        found = self.ranking(1)
        if not found:
            raise UserError(f"nothing to choose: of {self.evaluations} archs told, each failed or breaks the limits")
        return found[0].arch if len(self.objectives.names) == 1 else [row.arch for row in found]

    def finalists(self, n: int) -> list[Arch]:
        """Return the candidates for the winner: the best n, the best first; with several objectives the front.

        Raises:
            UserError: nothing was told, or every arch failed.
        """
        self.best()
        return [row.arch for row in self.ranking(n)]

    def summary(self) -> str:
        """Return the best so far as text, for progress lines."""
        found = self.ranking(1)
        if not found:
            return "best -"
        if len(self.objectives.names) > 1:
            return f"front of {len(found)}"
        (name,) = self.objectives.names
        assert found[0].objectives is not None
        return f"best {name} {found[0].objectives[name]:.6g} ({found[0].arch.id})"

    def tie(self) -> str | None:
        """Return how a tie for the best score was decided, as text; None if there is no tie."""
        if len(self.objectives.names) > 1:
            return None
        (name,) = self.objectives.names
        ranked = self.ranking(self.evaluations)
        if not ranked:
            return None
        first, *others = ranked
        assert first.objectives is not None
        equal = [row for row in others if row.objectives is not None and row.objectives[name] == first.objectives[name]]
        if not equal:
            return None
        differing = (
            cost for cost in self.problem.tie_costs if any(row.costs[cost] != first.costs[cost] for row in equal)
        )
        by = next(differing, None)
        if by is not None:
            why = f"the {'higher' if by in HIGH_IS_GOOD else 'lower'} {by} decides"
        elif any(row.loss != first.loss for row in equal):
            why = "the lower loss decides"
        else:
            why = "the first of them is taken"
        return f"{1 + len(equal)} archs have the best {name}, {first.objectives[name]:.6g}: {why}, for {first.arch.id}"

    def scored(self) -> list[Evaluated]:
        """Return the rows with scores on all images, in order."""
        return [row for row in self.history if row.objectives is not None]
