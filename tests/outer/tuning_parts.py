"""A tuning without Ray: the proposer's trials, carried out one after the other, and a driver that dies on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raynas.outer.trials import Trial, read_trials, write_trial
from raynas.outer.tuning.study import Study
from raynas.presets.tune import TuneConfig
from raynas.runs.run import Run

PARAMS: dict[str, Any] = {
    "x": {"low": 0.0, "high": 1.0},
    "opt": {"choices": ["a", ["b", 2]]},
    "y": {"low": 1, "high": 4, "when": {"opt": [["b", 2]]}},
}
STEPS = 4


def config(**settings: Any) -> TuneConfig:
    """The settings of a tuning of a parabola."""
    given = {"params": PARAMS, "objectives": {"loss": "min"}, "seed": 3, **settings}
    return TuneConfig.model_validate(given)


def loss(values: Mapping[str, Any]) -> float:
    """The parabola; least at x = 0.3, with opt = a."""
    return (values["x"] - 0.3) ** 2 + values.get("y", 0) / 4


def carry_on(run: Run, settings: TuneConfig, trials: int, killed: tuple[str, int] | None = None) -> None:
    """Carry a tuning out as the driver does, to a number of trials or to where it is killed.

    Args:
        killed: a moment and the number of a trial: `asked`, `begun`, `step` (the second), `pruning` (the value that
            decides is written, the end is not), `ended` (the row is written, the study does not know).
    """
    study = Study(run, settings)
    steps = {(row["number"], row["step"]) for row in run.store.read("trial_steps").to_pylist()}
    known = read_trials(run)
    for trial in known:
        study.tell(trial)
    unfinished = [trial for trial in known if trial.state == "running"]
    while unfinished or len(read_trials(run)) < trials:
        proposed = unfinished.pop(0) if unfinished else study.ask()
        if proposed is None or killed == ("asked", proposed.number):
            return
        trial = Trial(proposed.number, proposed.name, proposed.values, proposed.run)
        write_trial(run, trial)
        if killed == ("begun", trial.number):
            return
        pruned = False
        for step in range(1, STEPS + 1):
            value = loss(trial.values) + 1 / step
            pruned = study.prune(trial.number, step, value)
            if killed == ("step", trial.number) and step == 2:
                return
            if (trial.number, step) not in steps:
                run.store.append("trial_steps", [{"number": trial.number, "step": step, "value": value, "attempt": 1}])
            if pruned:
                break
        if killed == ("pruning", trial.number):
            return
        results = {} if pruned else {"loss": loss(trial.values)}
        trial = replace(trial, state="pruned" if pruned else "finished", results=results)
        write_trial(run, trial)
        if killed == ("ended", trial.number):
            return
        study.tell(trial)


def table(run: Run) -> list[tuple[Any, ...]]:
    """The final table of a tuning, without its times."""
    return [(trial.number, dict(trial.values), trial.state, dict(trial.results)) for trial in read_trials(run)]
