"""The trials of an experiment: what they are, who proposes them, when no more begin, and their rows."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from raynas.results.run_dir import RunDir, plain
from raynas.results.store import rows_by
from raynas.text import duration

TRIALS = "trials"
"""Folder of the trials' run directories in that of the experiment."""

State = Literal["running", "finished", "pruned", "failed"]


@dataclass(frozen=True)
class Proposed:
    """A trial to be carried out.

    Attributes:
        number: its number, from 0. A number that was there before begins that trial again.
        name: its name, that of its Ray Tune trial too.
        values: what is different in this trial, as plain values by name.
        run: its folder in the experiment's run directory; empty for the run directory itself.
    """

    number: int
    name: str
    values: Mapping[str, Any]
    run: str


@dataclass(frozen=True)
class Trial(Proposed):
    """A trial, as the newest row of its number in table `trials` has it.

    Attributes:
        results: what a finished trial came to, by name.
        reason: why it failed or was pruned; else None.
        seconds: wall time of its last attempt.
        attempt: number of the command's attempt that began it, from 1.
    """

    state: State = "running"
    results: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None
    seconds: float = 0.0
    attempt: int = 1


class Wait:
    """A proposer's answer that there may be another trial once a running one has ended."""


class Proposer(ABC):
    """Whatever proposes the trials of an experiment."""

    @abstractmethod
    def ask(self) -> Proposed | Wait | None:
        """Return the next trial; None if there are no more."""

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Take note of a trial.

        Called when a trial has ended, however it ended, and at the start for every trial that is read back, in the
        order of their numbers: ended ones, and running ones, which are carried on without being asked for.
        """

    def prune(self, number: int, step: int, value: float) -> bool:
        """Return True if a trial is to be ended after a step, by the value that it reported for it."""
        return False


class Listed(Proposer):
    """A proposer of trials that are known in advance: those that have not finished, each once.

    Failed ones are tried again when the same command is given again.
    """

    def __init__(self, trials: Sequence[Proposed]):
        self._left = {trial.number: trial for trial in trials}

    def ask(self) -> Proposed | Wait | None:
        return self._left.pop(next(iter(self._left))) if self._left else None

    def tell(self, trial: Trial) -> None:
        if trial.state != "failed":
            self._left.pop(trial.number, None)


@dataclass(frozen=True)
class Stop:
    """When no more trials begin; those under way come to their end.

    Attributes:
        seconds: wall time of the command, over all its attempts.
        objective: name of the result that `target` and `patience` look at.
        better: whether more or less of it is better.
        target: a value of it that suffices.
        patience: number of trials in a row without a better one.
    """

    trials: int | None = None
    seconds: float | None = None
    objective: str | None = None
    better: Literal["max", "min"] = "max"
    target: float | None = None
    patience: int | None = None

    def best(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the first of the best finished trials by the objective; None without one."""
        sign = -1.0 if self.better == "max" else 1.0
        known = [trial for trial in trials if trial.state == "finished" and self.objective in trial.results]
        return min(known, key=lambda trial: sign * trial.results[str(self.objective)], default=None)

    def reached(self, trials: Sequence[Trial], seconds: float) -> str | None:
        """Return in words which rule is reached; None if none is."""
        if self.trials is not None and len(trials) >= self.trials:
            return f"all {self.trials} trials have begun"
        if self.seconds is not None and seconds >= self.seconds:
            return f"{duration(self.seconds)} are over"
        best = self.best(trials)
        if best is None:
            return None
        value = best.results[str(self.objective)]
        if self.target is not None and (value >= self.target if self.better == "max" else value <= self.target):
            return f"{self.objective} has reached its target: {value:.4g} in trial {best.name}"
        since = sum(trial.number > best.number and trial.state != "running" for trial in trials)
        if self.patience is not None and since >= self.patience:
            return f"no better {self.objective} than {value:.4g} of trial {best.name} in {since} trials"
        return None


def read_trials(run: RunDir) -> list[Trial]:
    """Return the trials of an experiment by their numbers, each as its newest row has it."""
    newest = {row["number"]: row for row in run.store.read("trials").to_pylist()}
    return [_from_row(newest[number]) for number in sorted(newest)]


def write_trial(run: RunDir, trial: Trial) -> None:
    """Write a row of table `trials`."""
    values, results = json.dumps(plain(trial.values)), json.dumps(dict(trial.results))
    run.store.append("trials", [{**asdict(trial), "values": values, "results": results}])


def _from_row(row: Mapping[str, Any]) -> Trial:
    columns = ("number", "name", "run", "state", "reason", "seconds", "attempt")
    texts = {name: json.loads(row[name]) for name in ("values", "results")}
    return Trial(**{name: row[name] for name in columns}, **texts)


def seconds_spent(run: RunDir) -> float:
    """Return the wall time of the attempts so far, from the first row of each to its last."""
    attempts = rows_by(run.store.read("trials", ["attempt", "time"]).to_pylist(), "attempt")
    times = [[row["time"] for row in rows] for rows in attempts.values()]
    return sum((max(found) - min(found)).total_seconds() for found in times)
