"""A study of Optuna as the proposer of an experiment's trials.

The experiment's rows are what counts. A trial is in the study before it has a row, and a result is in the rows before
it is in the study; so whatever a killed driver has left, the study is brought up to the rows as they are read back, and
a lost one is made anew from them. Samplers keep nothing outside the study: each trial has one of its own, with its own
seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from raynas.errors import RunDirError
from raynas.outer.trials import TRIALS, Proposed, Proposer, Trial
from raynas.outer.tuning.params import decode, distribution, grid, suggest
from raynas.outer.tuning.pruners import build_pruner
from raynas.outer.tuning.study_file import STUDY, StudyFile
from raynas.outer.tuning.warm_start import FROM, frozen_trials
from raynas.presets.tune import TuneConfig, encode
from raynas.runs.run import Run
from raynas.search.optuna_samplers import build_sampler


class Study(Proposer):
    """A proposer of trials by Optuna.

    Args:
        run: the run directory of the tuning, whose rows may be read back, as may the trials that it began with.
        config: parameters, objectives, sampler and pruner.
        name: returns the name of a trial, by its number and values.
    """

    def __init__(
        self,
        run: Run,
        config: TuneConfig,
        name: Callable[[int, Mapping[str, Any]], str] = lambda number, values: f"{number:04d}",
    ):
        self._run, self._config, self._name = run, config, name
        self._file = StudyFile(run, config.objectives)
        self._study, self._storage = self._file.study, self._file.storage
        self._study.pruner = build_pruner(config.pruner)
        self._combinations = grid(config.params) if config.sampler.name == "grid" else []
        self._steps: dict[int, dict[int, float]] = defaultdict(dict)
        for row in run.store.read("trial_steps").to_pylist():
            self._steps[row["number"]][row["step"]] = row["value"]
        if self._file.is_new:
            self._study.add_trials(frozen_trials(run, config.params))
            self._file.publish()
        self._earlier = sum(FROM in trial.user_attrs for trial in self._study.get_trials(deepcopy=False))
        self._known: set[int] = set()

    def ask(self) -> Proposed | None:
        """Return the next trial; None once a grid is tried out."""
        number = self._earlier + len(self._known)
        trials = self._study.get_trials(deepcopy=False)
        if number < len(trials):  # a killed driver had asked for it, and not begun it
            params = self._config.params
            values = {name: decode(params[name], value) for name, value in trials[number].params.items()}
        else:
            if self._combinations and len(self._known) >= len(self._combinations):
                return None
            self._study.sampler = self._sampler(number)
            trial = self._study.ask()
            values = suggest(trial, self._config.params)
            self._file.publish()
        self._known.add(number)
        name = self._name(number, values)
        return Proposed(number, name, values, f"{TRIALS}/{name}")

    def tell(self, trial: Trial) -> None:
        """Bring the study up to a trial's row."""
        self._known.add(trial.number)
        stored = self._stored(trial)
        if trial.state != "running" and not stored.state.is_finished():
            for step, value in sorted(self._steps[trial.number].items()):
                if step not in stored.intermediate_values:
                    self._prunes(trial.number, step, value)  # pruners note what they have seen
            self._finish(trial, stored)
            self._file.publish()

    def prune(self, number: int, step: int, value: float) -> bool:
        """Return True if a trial is to be ended after a step.

        A trial that is carried on may report steps again: those before its newest one did not end it.
        """
        before = max(self._steps[number], default=step)
        self._steps[number].setdefault(step, value)
        if len(self._config.objectives) > 1 or step < before:
            return False
        prune = self._prunes(number, step, value)
        if not prune:  # an end is published with its row
            self._file.publish()
        return prune

    def _prunes(self, number: int, step: int, value: float) -> bool:
        trial = self._study.get_trials(deepcopy=False)[number]
        if step not in trial.intermediate_values:
            self._storage.set_trial_intermediate_value(trial._trial_id, step, value)
        return self._study.pruner.prune(self._study, self._storage.get_trial(trial._trial_id))

    def _sampler(self, number: int) -> Any:
        part, config = self._config.sampler, self._config
        objectives = len(config.objectives)
        return build_sampler(part.name, part.options, config.seed, number, objectives, self._combinations)

    def _stored(self, trial: Trial) -> FrozenTrial:
        """Return a trial of the study, added to it if it is not there."""
        params = {name: encode(value) for name, value in trial.values.items()}
        if trial.number == len(self._study.get_trials(deepcopy=False)):
            self._add(trial.number, params)
        trials = self._study.get_trials(deepcopy=False)
        if trial.number >= len(trials) or trials[trial.number].params != params:
            raise RunDirError(
                f"{self._run.name}/{STUDY} is not the study of these trials: move it away; it is made again from the "
                "rows"
            )
        return trials[trial.number]

    def _add(self, number: int, params: Mapping[str, Any]) -> None:
        """Add a trial with known values, after which samplers that count go on as after asking for it."""
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        _ = trial.relative_params
        for name, value in params.items():
            of = distribution(self._config.params[name])
            self._storage.set_trial_param(trial._trial_id, name, of.to_internal_repr(value), of)

    def _finish(self, trial: Trial, stored: FrozenTrial) -> None:
        for name, value in {**trial.results, "run": trial.run, "reason": trial.reason}.items():
            self._storage.set_trial_user_attr(stored._trial_id, name, value)
        self._study.sampler = self._sampler(trial.number)
        if trial.state == "finished":
            self._study.tell(trial.number, [trial.results[name] for name in self._config.objectives])
        else:
            state = TrialState.PRUNED if trial.state == "pruned" else TrialState.FAIL
            self._study.tell(trial.number, state=state)
