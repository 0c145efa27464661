"""Base of all searches: ask, tell, history and best archs."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

import numpy as np

from raynas.costs import Bounds, CostFunction
from raynas.errors import UserError
from raynas.search.candidates import Candidates, logger
from raynas.search.history import Evaluated, History
from raynas.search.objectives import Direction, Score, stopped
from raynas.search.problem import Problem
from raynas.space import Arch, Codes, Space
from raynas.space.codes import Uniform
from raynas.text import nearest, shown


@runtime_checkable
class AskTell(Protocol):
    """A search that `run_search` can drive: ours, or a user's own object with these two methods."""

    def ask(self, n: int) -> list[Arch]:
        """Return up to n archs to score; none when the search is over."""
        ...

    def tell(self, archs: Sequence[Arch], scores: Sequence[Any]) -> None:
        """Record the scores of archs, in the order in which they were asked."""
        ...


@dataclass(frozen=True)
class _Asked:
    generation: int
    code: np.ndarray
    costs: Mapping[str, float]
    arch: Arch


class SearchArguments(TypedDict, total=False):
    """Arguments that every search takes besides its own options; see `Search`."""

    objectives: Mapping[str, Direction] | None
    constraints: Mapping[str, Bounds] | None
    seed: int
    costs: Mapping[str, CostFunction] | None
    evaluations: int | None
    generations: int | None


class Search(History, ABC):
    """Base of our searches: generations of feasible archs without repeats.

    A search is a pure function of its arguments and scores: the same seed and scores give the same archs, in batches
    of any size. So it has no state to save: to resume one, ask and tell again.

    A subclass's constructor holds its own options and passes all other arguments on to this one.

    Attributes:
        problem: the space, objectives, constraints and costs.
        budget: the most archs to return; None if only the space limits them.
        generations: the most generations after the first; None for any number.
        history: the scored archs in order.
        ended: why the search ended before its budget; None if it did not.
        notes: notes of the search so far, a line each, shown by `run_search`.
    """

    learns = True
    """True if a generation depends on earlier scores and must wait for them; budgets may then be in generations."""

    default_evaluations: int | None = None
    default_generations: int | None = None
    """The budget of a search that is given none; without any, it goes on until there are no more archs."""

    uniform_over: Uniform = "dimensions"
    """The distribution of random archs; see `Space.sample_codes`."""

    def __init__(
        self,
        space: Space,
        objectives: Mapping[str, Direction] | None = None,
        constraints: Mapping[str, Bounds] | None = None,
        seed: int = 0,
        evaluations: int | None = None,
        generations: int | None = None,
        *,
        costs: Mapping[str, CostFunction] | None = None,
        **unknown: Any,
    ):
        """Build the search.

        Args:
            space: the search space.
            objectives: `max` or `min` by name, of scores or of costs; by default the largest accuracy.
            constraints: inclusive bounds by cost.
            seed: seed of all draws.
            evaluations: budget in archs.
            generations: budget in generations after the first. With both budgets, the first one spent ends the search;
                with none, the class's default does.
            costs: custom costs by name, as functions of codes, for objectives and constraints.

        Raises:
            InfeasibleError: no arch of the space meets the constraints.
            UserError: an argument is out of range or unknown.
        """
        for name in unknown:
            known = [*SearchArguments.__annotations__, *own_options(type(self))]
            raise UserError(f"{type(self).__name__} has no option {shown(name)}{nearest(name, known)}")
        if generations is not None and not self.learns:
            raise UserError(f"{type(self).__name__} has no generations: give evaluations")
        if evaluations is None and generations is None:
            evaluations, generations = self.default_evaluations, self.default_generations
        if evaluations is not None:
            at_least(1, evaluations=evaluations)
        if generations is not None:
            at_least(0, generations=generations)
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise UserError(f"seed must be a whole number of at least 0, not {shown(seed)}")
        super().__init__(Problem(space, objectives, constraints, costs))
        self.budget = evaluations
        if generations is not None and (sizes := self._sizes()) is not None:
            archs = sizes[0] + generations * sizes[1]
            self.budget = archs if evaluations is None else min(evaluations, archs)
        self.generations = generations
        self.ended: str | None = None
        self.notes: list[str] = []
        self.warn: Callable[..., None] = logger.warning
        sampling, variation = np.random.SeedSequence(seed).spawn(2)
        self.candidates = Candidates(self.problem, np.random.default_rng(sampling), self.uniform_over)
        self._rng = np.random.default_rng(variation)
        self._queue: deque[_Asked] = deque()
        self._outstanding: deque[_Asked] = deque()
        self._batches: list[tuple[Codes, np.ndarray]] = []
        self._handed_out = 0
        self._generation = -1
        self._short = False
        self.candidates.check()

    @abstractmethod
    def _next_generation(self) -> Codes:
        """Take the next generation from `self.candidates`; empty if there are no new archs."""

    def _sizes(self) -> tuple[int, int] | None:
        """Return the intended sizes of the first and of every later generation; None for any size."""
        return None

    def ask(self, n: int) -> list[Arch]:
        """Return the next archs to score, at most n and from one generation.

        Returns:
            New archs that meet the constraints. An empty list if the budget is spent or there are no new archs (then
            `ended` says why).

        Raises:
            UserError: n is not positive, or the generation is used up and some of its scores have not been told.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise UserError(f"ask for at least 1 arch, not {shown(n)}")
        if not self._queue:
            self._refill()
        asked = [self._queue.popleft() for _ in range(min(n, len(self._queue)))]
        self._outstanding.extend(asked)
        return [one.arch for one in asked]

    def _refill(self) -> None:
        codes = self._hand_out()
        if len(codes) == 0:
            return
        costs = self.constraints.costs(codes)
        for index, arch in enumerate(self.space.decode(codes)):
            values = {name: float(costs[name][index]) for name in costs}
            self._queue.append(_Asked(self._generation, codes[index], values, arch))

    def _hand_out(self) -> Codes:
        """Return the next generation within the budget; none if the search is over."""
        left = None if self.budget is None else self.budget - self._handed_out
        none = np.empty((0, len(self.space.dimensions)), dtype=np.int16)
        if self.ended or left == 0 or self._generation == self.generations:
            return none
        if self.learns and self._outstanding:
            raise UserError(f"{len(self._outstanding)} archs of this generation have no score yet: tell them first")
        first, later = self._sizes() or (None, None)
        wanted = first if self._generation < 0 else later
        codes = self._next_generation()
        if len(codes) == 0:
            self.ended = self.candidates.exhausted()
            self.warn("search ends early: %s", self.ended)
            return none
        self._generation += 1
        codes = codes[:left]
        if wanted is not None and len(codes) < (wanted if left is None else min(wanted, left)) and not self._short:
            self._short = True
            self.warn("from generation %d on there are fewer new archs than wanted (%d)", self._generation, wanted)
        self._handed_out += len(codes)
        return codes

    def run_on_costs(self) -> tuple[Codes, np.ndarray]:
        """Run a search whose objectives are all costs to its end, as asking and telling would, but without archs.

        Returns:
            Codes [n, dimensions] and minimised objectives [n, objectives] of all archs but those that failed.
        """
        while len(codes := self._hand_out()):
            values = self.objectives.minimised_costs(self.constraints.costs(codes))
            good = np.isfinite(values).all(axis=1)
            self._batches.append((codes[good], values[good]))
        return self._scored()

    def tell(self, archs: Sequence[Arch], scores: Sequence[Score]) -> None:
        """Record the scores of archs in the order in which they were asked, of all or only the first.

        Args:
            scores: for each arch a number (one scored objective), a mapping with the scored objectives' names (such as
                a row of the `scores` table), or None. A None or NaN value, or `status: failed`, is a failed arch: it
                is recorded, but is never a parent or the best. The same holds for `status: stopped`, an arch that
                racing or a rung stopped, with its `accuracy` so far and number of `images`.

        Raises:
            UserError: an arch was not asked, was told already, is out of order, or has other constants than the space;
                or scores are missing or lack an objective. Nothing is recorded then.
        """
        if not all(isinstance(each, Sequence | np.ndarray) for each in (archs, scores)):
            raise UserError(f"tell a list of archs and a list of scores, not {shown(archs)} and {shown(scores)}")
        if len(archs) != len(scores):
            raise UserError(f"told {len(archs)} archs and {len(scores)} scores")
        if len(archs) > len(self._outstanding):
            raise UserError(f"told {len(archs)} archs, but only {len(self._outstanding)} asked ones have no score yet")
        rows = []
        for index, (arch, score) in enumerate(zip(archs, scores, strict=True)):
            asked = self._outstanding[index]
            if not isinstance(arch, Arch):
                raise UserError(f"told the score of {shown(arch)}: give the archs that were asked")
            self.space.check_own(arch)
            if arch != asked.arch:
                raise UserError(
                    f"told arch {arch.id}, but the next asked one without a score is {asked.arch.id}: "
                    "tell scores in the order in which the archs were asked"
                )
            objectives = self.objectives.read(score, asked.costs)
            loss = self.objectives.loss(score)
            order = len(self.history) + index
            rows.append(Evaluated(order, asked.generation, asked.arch, objectives, asked.costs, loss, stopped(score)))
        self.history += rows
        told = np.array([self._outstanding.popleft().code for _ in rows], dtype=np.int16)
        good = np.array([row.objectives is not None for row in rows], dtype=bool)
        values = self.objectives.minimised([row.objectives for row in rows if row.objectives is not None])
        self._batches.append((told.reshape(len(rows), len(self.space.dimensions))[good], values))

    def _scored(self, after: int = 0) -> tuple[Codes, np.ndarray]:
        """Return codes [n, dimensions] and minimised objectives [n, objectives] of archs with whole scores.

        Args:
            after: number of batches, the first that were told, to leave out.
        """
        codes = [np.empty((0, len(self.space.dimensions)), dtype=np.int16)]
        values = [self.objectives.minimised([])]
        for told, scores in self._batches[after:]:
            codes.append(told)
            values.append(scores)
        return np.concatenate(codes), np.concatenate(values)

    def _with_new(self, kept: tuple[Codes, np.ndarray], merged: int) -> tuple[Codes, np.ndarray]:
        """Return kept codes and minimised objectives, and behind them those of the batches after the first `merged`."""
        codes, values = zip(kept, self._scored(merged), strict=True)
        return np.concatenate(codes), np.concatenate(values)


def own_options(search: type[Search]) -> list[str]:
    """Return the names of a search's own options: the keyword-only arguments of its class."""
    parameters = inspect.signature(search).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY and each.name != "costs"]


MOST = 10**6
"""The most archs, tries or generations, far more than a search can spend."""


def at_least(minimum: int, **options: Any) -> None:
    """Refuse options that are not integers from a minimum to `MOST`; the message names the option."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MOST:
            bound = f"at most {MOST:,}" if isinstance(value, int) and value > MOST else f"at least {minimum}"
            raise UserError(f"{name} must be an integer of {bound}, not {shown(value)}")
