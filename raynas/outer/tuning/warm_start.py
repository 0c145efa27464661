"""Trials of other studies that a tuning begins with: of earlier tunings, and of any study of Optuna."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from raynas.errors import UserError, reason
from raynas.locations import hide_secrets
from raynas.outer.trials import read_trials
from raynas.outer.tuning.params import distribution, encode
from raynas.outer.tuning.study import FROM
from raynas.presets.tune import Param, TuneConfig, in_order, is_active
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run, open_run

Known = tuple[dict[str, Any], list[float]]
"""The values of a finished trial by name, and its results by objective."""


def earlier_trials(config: TuneConfig, progress: Progress = silent) -> list[FrozenTrial]:
    """Return the finished trials of the studies to begin with, as far as their values are the tuning's.

    Args:
        progress: called with a line about each study.

    Raises:
        UserError: a study cannot be read, has other parameters or objectives, or no trial with values of the tuning's.
    """
    found: list[FrozenTrial] = []
    for source in config.warm_start:
        known = list(_of_study(source, config) if "#" in source else _of_run(open_run(source), config))
        shown = hide_secrets(source)
        if strange := {name for values, _ in known for name in values} - config.params.keys():
            raise UserError(f"warm_start {shown}: it tunes {min(strange)}, which is no parameter here")
        taken = [(values, results) for values, results in known if _fits(config.params, values)]
        if not taken:
            told = f"none of its {len(known)} finished trials has values of these parameters"
            raise UserError(f"warm_start {shown}: {told}")
        progress(f"beginning with {len(taken)} of the {len(known)} finished trials of {shown}")
        found += [_frozen(config.params, values, results, shown) for values, results in taken]
    return found


def _of_run(run: Run, config: TuneConfig) -> Iterator[Known]:
    for trial in read_trials(run):
        if trial.state == "finished":
            if missing := [name for name in config.objectives if name not in trial.results]:
                raise UserError(f"warm_start {run.name}: its trials have no {missing[0]}")
            yield dict(trial.values), [trial.results[name] for name in config.objectives]


def _of_study(source: str, config: TuneConfig) -> Iterator[Known]:
    storage, _, name = source.rpartition("#")
    try:
        study = optuna.load_study(study_name=name, storage=storage)
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    except Exception as error:  # of SQLAlchemy, of a driver, or of Optuna, by what is wrong
        raise UserError(f"warm_start {hide_secrets(source)}: it cannot be read: {reason(error)}") from error
    directions = [direction.name.lower()[:3] for direction in study.directions]
    if directions != list(config.objectives.values()):
        raise UserError(
            f"warm_start {hide_secrets(source)}: its objectives are {', '.join(directions)}, not "
            f"{', '.join(config.objectives.values())}"
        )
    for trial in trials:
        yield trial.params, list(trial.values)


def _fits(params: Mapping[str, Param], values: Mapping[str, Any]) -> bool:
    """Return True if some values are what a trial of the tuning may have."""
    placed: dict[str, Any] = {}
    for name in in_order(params):
        if is_active(params[name], placed) != (name in values):
            return False
        if name in values:
            known = params[name].choices
            match = values[name] in params[name] or (known is not None and values[name] in map(encode, known))
            if not match:
                return False
            placed[name] = values[name]
    return True


def _frozen(params: Mapping[str, Param], values: Mapping[str, Any], results: list[float], source: str) -> FrozenTrial:
    stored = {name: encode(value) for name, value in values.items()}
    distributions: dict[str, BaseDistribution] = {name: distribution(params[name]) for name in stored}
    return create_trial(params=stored, distributions=distributions, values=results, user_attrs={FROM: source})
