"""The user's own searches: any object with `ask` and `tell`, with its answers checked and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raynas.errors import ConfigError, UserError
from raynas.search.history import Evaluated, History
from raynas.search.objectives import Score
from raynas.search.problem import Problem
from raynas.space import Arch, Space
from raynas.text import one_line
from raynas.user_code import kind, running, takes

STALLED = 100
"""The most calls of `ask` in a row without a new arch, before a search counts as endless."""


class OwnSearch:
    """A user's own search whose answers are checked: a broken contract is an error of one line.

    Args:
        search: the object.
        space: its space; None if it is not known.

    Raises:
        ConfigError: it has no `ask(n)` or no `tell(archs, scores)`.
    """

    def __init__(self, search: Any, space: Space | None = None):
        self.search, self.space = search, space
        self.name = f"search {type(search).__module__}:{type(search).__qualname__}"
        for method, arguments, form in (("ask", 1, "ask(n)"), ("tell", 2, "tell(archs, scores)")):
            with running(f"{self.name}: {method}"):
                function = getattr(search, method, None)
            if not callable(function) or not takes(function, arguments):
                raise ConfigError(
                    f"{self.name} must be an object with ask(n) and tell(archs, scores): it has no {form}"
                )
        with running(f"{self.name}: best"):
            best = getattr(search, "best", None)
        if best is not None and not (callable(best) and takes(best, 0)):
            raise ConfigError(f"{self.name}: best must be a method without arguments, or not be there")
        self._seen: set[Arch] = set()
        self._stalled = 0

    def ask(self, n: int) -> list[Arch]:
        """Return up to n archs; none when the search is over.

        Raises:
            ConfigError: the search fails, or returns something else.
        """
        with running(f"{self.name}: ask({n})"):
            answer = self.search.ask(n)
        must = f"{self.name}: ask({n}) must return a list of at most {n} archs, and an empty one at the end"
        if not isinstance(answer, list | tuple):
            raise ConfigError(f"{must}; it returned {kind(answer)}")
        if len(answer) > n:
            raise ConfigError(f"{must}; it returned {len(answer)}")
        archs = self._archs(answer, must)
        new = [arch for arch in archs if arch not in self._seen]
        self._seen.update(new)
        self._stalled = 0 if new or not archs else self._stalled + 1
        if self._stalled == STALLED:
            raise ConfigError(
                f"{must}; {STALLED} times in a row it asked for nothing but archs that it was told before"
            )
        return archs

    def tell(self, archs: Sequence[Arch], scores: Sequence[Any]) -> None:
        """Pass on the scores of archs.

        Raises:
            ConfigError: the search fails.
        """
        with running(f"{self.name}: tell(archs, scores)"):
            self.search.tell(archs, scores)

    def best(self) -> Arch | list[Arch] | None:
        """Return the search's own best arch or archs; None if it has no `best()`.

        Raises:
            ConfigError: the search fails, or returns something else.
        """
        if not hasattr(self.search, "best"):
            return None
        with running(f"{self.name}: best()"):
            answer = self.search.best()
        must = f"{self.name}: best() must return one of the archs that it was told, or a list of them (a front)"
        if isinstance(answer, Arch):
            return self._archs([answer], must)[0]
        if not isinstance(answer, list | tuple):
            raise ConfigError(f"{must}; it returned {kind(answer)}")
        if not answer:
            raise ConfigError(f"{must}; it returned an empty one")
        return self._archs(answer, must)

    @property
    def budget(self) -> int | None:
        """Number of archs that it will ask for; None if it does not say."""
        with running(f"{self.name}: budget"):
            budget = getattr(self.search, "budget", None)
        if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or not 0 <= budget <= 10**9):
            raise ConfigError(f"{self.name}: budget must be a whole number from 0, or None; it is {kind(budget)}")
        return budget

    @property
    def notes(self) -> Sequence[str]:
        """The search's notes so far, a line each."""
        with running(f"{self.name}: notes"):
            notes = getattr(self.search, "notes", [])
        if not isinstance(notes, list | tuple) or not all(isinstance(note, str) for note in notes):
            raise ConfigError(f"{self.name}: notes must be a list of lines; it is {kind(notes)}")
        return [one_line(note) for note in notes]

    def summary(self) -> str:
        """Return the search's own summary; empty if it has none."""
        with running(f"{self.name}: summary()"):
            text = self.search.summary() if hasattr(self.search, "summary") else ""
        if not isinstance(text, str):
            raise ConfigError(f"{self.name}: summary() must return a few words; it returned {kind(text)}")
        return one_line(text)

    def _archs(self, answer: Sequence[Any], must: str) -> list[Arch]:
        for index, arch in enumerate(answer):
            if not isinstance(arch, Arch):
                hint = ": space.arch(values) makes an arch" if isinstance(arch, Mapping) else ""
                raise ConfigError(f"{must}; item {index} is {kind(arch)}{hint}")
            if self.space is not None:
                try:
                    self.space.check_own(arch)
                except ConfigError as error:
                    raise ConfigError(f"{must}; {error}") from error
        return list(answer)


class RecordedSearch(History):
    """A user's own search with a history, from which the winner is taken if it has no `best()`.

    Attributes:
        search: the user's object.
        budget: the most archs that are scored for it; None for no limit.
    """

    def __init__(self, search: Any, problem: Problem, evaluations: int | None = None):
        super().__init__(problem)
        self.search, self._own, self._limit = search, OwnSearch(search, problem.space), evaluations

    @property
    def evaluations(self) -> int:
        """Number of archs told, failed ones included; one that the search asks for again has its score already."""
        return len({row.arch for row in self.history})

    @property
    def budget(self) -> int | None:
        """The preset's budget, or the search's own."""
        return self._own.budget if self._limit is None else self._limit

    @property
    def notes(self) -> Sequence[str]:
        """See `OwnSearch.notes`."""
        return self._own.notes

    def ask(self, n: int) -> list[Arch]:
        """See `OwnSearch.ask`; asks for no more than is left of the preset's budget."""
        left = n if self._limit is None else self._limit - self.evaluations
        return self._own.ask(min(n, left)) if left > 0 else []

    def tell(self, archs: Sequence[Arch], scores: Sequence[Score]) -> None:
        """Record the scores, then pass them on; see `OwnSearch.tell`."""
        for arch, score in zip(archs, scores, strict=True):
            costs = self.problem.costs_of(arch)
            objectives, loss = self.objectives.read(score, costs), self.objectives.loss(score)
            self.history.append(Evaluated(len(self.history), 0, arch, objectives, costs, loss))
        self._own.tell(archs, scores)

    def best(self) -> Arch | list[Arch]:
        """Return the search's own best, or else the best of the history within the constraints.

        Raises:
            UserError: nothing has a score; or its own best was never told, failed, or breaks a constraint.
        """
        chosen = self._own.best()
        if chosen is None:
            return super().best()
        known = {row.arch: row for row in self.history}
        for arch in [chosen] if isinstance(chosen, Arch) else chosen:
            row = known.get(arch)
            wrong = f"{self._own.name}: best() must return archs that it was told, within the limits; {arch.id}"
            if row is None or row.objectives is None:
                raise UserError(f"{wrong} {'was never told' if row is None else 'could not be scored'}")
            if not self.problem.allows(row.costs):
                raise UserError(f"{wrong} is not: {self.constraints.describe()}")
        return chosen

    def finalists(self, n: int) -> list[Arch]:
        """Return the search's own best; see `History.finalists` if it has no `best()`."""
        if not hasattr(self.search, "best"):
            return super().finalists(n)
        best = self.best()
        return [best] if isinstance(best, Arch) else best

    def summary(self) -> str:
        """Return the search's own summary, or the best so far."""
        return self._own.summary() or super().summary()

    def scored(self) -> list[Evaluated]:
        """Return each arch once, without those outside the constraints, which a user's own search may ask for."""
        rows = {row.arch: row for row in reversed(super().scored()) if self.problem.allows(row.costs)}
        return sorted(rows.values(), key=lambda row: row.order)
