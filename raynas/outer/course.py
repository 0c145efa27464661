"""The driver's side of an experiment: it asks the proposer, writes the rows, and says what has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from raynas.cluster.growth import WAIT_S, describe_shortage
from raynas.outer.trials import Proposed, Proposer, State, Stop, Trial, Wait, read_trials, seconds_spent, write_trial
from raynas.progress.reporter import Activity, Reporter
from raynas.runs.run import Run
from raynas.text import duration

TUNE = "tune"
"""Folder of Ray Tune's own files in the run directory, for `tensorboard --logdir <run>/tune`."""

LOST = 3
"""Times that a trial's process may be lost through no fault of its own; it is begun again."""


class Course:
    """An attempt under way: asks the proposer, writes the rows, and says what has ended.

    Attributes:
        limit: says how many trials may run now.
        running: trials under way by the id of their Tune trial.
        at_work: True if one of them has its process.
        goes_on: False once there will be no more trials.
        lack: what the cluster lacks for a trial, in words, once none has run for `WAIT_S` for want of it.
    """

    limit: Callable[[], int]
    goes_on = True
    at_work = False
    lack: str | None = None

    def __init__(self, run: Run, proposer: Proposer, stop: Stop, progress: Reporter):
        self.run, self._proposer, self._stop, self._progress = run, proposer, stop, progress
        self._trials = {trial.number: trial for trial in read_trials(run)}
        self.attempt = 1 + max((int(name) for name in run.list(TUNE) if name.isdigit()), default=0)
        self._spent, self._began = seconds_spent(run), time.monotonic()
        self._waiting: deque[Proposed] = deque(t for t in self._trials.values() if t.state == "running")
        self._steps = {(row["number"], row["step"]) for row in run.store.read("trial_steps").to_pylist()}
        self._newest: dict[int, str] = {}  # step and value of running trials, in words
        self._since: dict[int, float] = {}
        self._losses: dict[int, int] = {}
        self._over = False
        self._worked = time.monotonic()  # when a trial last ran, or there was room for one
        self.running: dict[str, Trial] = {}
        for trial in self._trials.values():
            proposer.tell(trial)
        if self._trials:
            ended = len(self._trials) - len(self._waiting)
            progress(f"going on with the experiment in {run.name}")
            progress(f"  {ended} trial(s) have ended, {len(self._waiting)} are carried on")

    def propose(self) -> Proposed | Wait | None:
        """Return the next trial; None if no more begin."""
        if self._waiting:
            return self._waiting.popleft()
        if self._over:
            return None
        reached = self._stop.reached(list(self._trials.values()), self._spent + time.monotonic() - self._began)
        if reached is not None:
            self._over = True
            self._progress(f"no more trials begin: {reached}")
            return None
        return self._proposer.ask()

    def put_back(self, proposed: Proposed | Wait) -> None:
        """Propose a trial once more."""
        if isinstance(proposed, Proposed):
            self._waiting.appendleft(proposed)

    def suggest(self, id: str) -> dict[str, Any] | None:
        """Begin the next trial, if there is one and room for it, and return its configuration for Tune."""
        if len(self.running) >= self.limit():
            return None
        proposed = self.propose()
        if not isinstance(proposed, Proposed):
            self.goes_on = proposed is not None or bool(self.running)
            return None
        fields = {name: getattr(proposed, name) for name in ("number", "name", "values", "run")}
        self._since[proposed.number] = time.monotonic()
        self.running[id] = self._write(Trial(**fields, attempt=self.attempt))
        title = "/".join(filter(None, (self.run.name.rstrip("/").rpartition("/")[2], proposed.name)))
        return {"title": title, "trial": proposed.name, "run": proposed.run, "values": dict(proposed.values)}

    def step(self, id: str, step: int, value: float) -> bool:
        """Write a value on the way; return True if the trial has been ended by it."""
        trial = self.running[id]
        prune = self._proposer.prune(trial.number, step, value)
        self._newest[trial.number] = f"{value:.4g} at {step}"
        if (trial.number, step) not in self._steps:
            self._steps.add((trial.number, step))
            row = {"number": trial.number, "step": step, "value": value, "attempt": self.attempt}
            self.run.store.append("trial_steps", [row])
        if prune:
            self.end(id, "pruned", reason=f"pruned at {step}, with {value:.4g}")
        return prune

    def end(self, id: str, state: State, results: Mapping[str, float] | None = None, reason: str | None = None) -> None:
        """Write the row of a trial that has ended, tell the proposer, and say so; once for each trial."""
        if (trial := self.running.pop(id, None)) is None:
            return
        seconds = time.monotonic() - self._since[trial.number]
        trial = self._write(replace(trial, state=state, results=results or {}, reason=reason, seconds=seconds))
        self._proposer.tell(trial)
        self._newest.pop(trial.number, None)
        self._progress(self._line(trial))

    def lose(self, id: str, why: str) -> bool:
        """Propose a trial again whose process was lost; return False if that was once too often."""
        trial = self.running[id]
        self._losses[trial.number] = self._losses.get(trial.number, 0) + 1
        if self._losses[trial.number] > LOST:
            return False
        self._waiting.append(self.running.pop(id))
        self._progress(f"{trial.name or 'the trial'}: {why}; it begins again")
        return True

    def begin_again(self) -> None:
        """Begin another attempt, in which the trials under way are carried on."""
        self.attempt += 1
        self._waiting.extendleft(reversed(self.running.values()))
        self.running.clear()

    def show(self, activity: Activity, needs: Mapping[str, float], state: Callable[[Trial], str | None]) -> None:
        """Show how far the running trials are, and what the cluster lacks; while none runs, for `WAIT_S` at most."""
        running = list(self.running.values())
        states = [
            ": ".join(filter(None, (trial.name, state(trial) or self._newest.get(trial.number)))) for trial in running
        ]
        lack, now = describe_shortage(needs), time.monotonic()
        if self.at_work or not running or lack is None:
            self._worked = now
        elif now - self._worked > WAIT_S:
            self.lack = lack
        if lack is not None:
            states.append(f"waiting for {lack}" + ("" if self.at_work else f"; for {duration(WAIT_S)} at most"))
        ended = sum(trial.state != "running" for trial in list(self._trials.values()))
        activity.update(done=ended, detail="; ".join(filter(None, states)))

    def _line(self, trial: Trial) -> str:
        name = trial.name or "the trial"
        if trial.state == "failed":
            return f"{name} failed: {trial.reason}"
        if trial.state == "pruned":
            return f"{name} {trial.reason}, after {duration(trial.seconds)}"
        results = ", ".join(f"{key} {value:.4g}" for key, value in trial.results.items())
        line = f"{name} finished after {duration(trial.seconds)}" + (f": {results}" if results else "")
        best = self._stop.best(list(self._trials.values()))
        if best is None:
            return line
        return f"{line} (the best so far: {best.results[str(self._stop.objective)]:.4g} of {best.name})"

    def _write(self, trial: Trial) -> Trial:
        write_trial(self.run, trial)
        self._trials[trial.number] = trial
        return trial
