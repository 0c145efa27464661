"""Trials of other studies that a tuning begins with: of earlier tunings, and of any study of Optuna."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import make_url

from raynas.errors import UserError, reason
from raynas.locations import hide_secrets
from raynas.outer.trials import read_trials
from raynas.outer.tuning.params import distribution
from raynas.presets.tune import Param, TuneConfig, encode, in_order, is_active
from raynas.progress.reporter import Progress, silent
from raynas.runs.files import TUNING
from raynas.runs.run import Run, open_run
from raynas.text import nearest
from raynas.text import shown as quoted

EARLIER = "warm_start.json"
"""File with the trials that a study began with, from which it is made anew if its own file is lost."""

FROM = "warm_start"
"""Attribute of a trial that is of another study: its name."""

Known = tuple[dict[str, Any], list[float]]
"""The values of a finished trial by name, and its results by objective."""


class Earlier(TypedDict):
    """A finished trial of another study, as plain values.

    Attributes:
        values: its values by parameter.
        results: its results, in the order of the objectives.
        source: the study.
    """

    values: dict[str, Any]
    results: list[float]
    source: str


def earlier_trials(
    config: TuneConfig, spaces: Sequence[Mapping[str, Any]] = (), progress: Progress = silent
) -> list[Earlier]:
    """Return the finished trials of the studies to begin with, as far as their values are the tuning's.

    Args:
        spaces: the spaces of the tuning's trials, if it tunes a preset.
        progress: called with a line about each study.

    Raises:
        UserError: a study cannot be read, has other spaces, parameters or objectives, or no trial with values of the
            tuning's.
    """
    found: list[Earlier] = []
    for source in config.warm_start:
        known = list(_of_study(source, config) if "#" in source else _of_run(open_run(source), config, spaces))
        shown = hide_secrets(source)
        if strange := {name for values, _ in known for name in values} - config.params.keys():
            raise UserError(f"warm_start {shown}: it tunes {min(strange)}, which is no parameter here")
        taken = [(values, results) for values, results in known if _fits(config.params, values)]
        if not taken:
            told = f"none of its {len(known)} finished trials has values of these parameters"
            raise UserError(f"warm_start {shown}: {told}")
        progress(f"beginning with {len(taken)} of the {len(known)} finished trials of {shown}")
        found += [Earlier(values=values, results=results, source=shown) for values, results in taken]
    return found


def frozen_trials(run: Run, params: Mapping[str, Param]) -> list[FrozenTrial]:
    """Return the trials that the study of a run directory began with, as Optuna has them."""
    return [_frozen(params, **earlier) for earlier in (run.read_json(EARLIER) if run.exists(EARLIER) else [])]


def _of_run(run: Run, config: TuneConfig, spaces: Sequence[Mapping[str, Any]]) -> Iterator[Known]:
    settings = run.read_yaml(f"{TUNING}.yaml", "settings")["settings"] if run.exists(f"{TUNING}.yaml") else {}
    theirs = settings.get("spaces", [])
    if spaces and theirs and not any(space in spaces for space in theirs):
        raise UserError(
            f"warm_start {run.name}: its trials are of another space ({theirs[0].get('name')}, not "
            f"{spaces[0].get('name')}), so that their results say nothing of these"
        )
    for trial in read_trials(run):
        if trial.state == "finished":
            if missing := [name for name in config.objectives if name not in trial.results]:
                raise UserError(f"warm_start {run.name}: its trials have no {missing[0]}")
            yield dict(trial.values), [trial.results[name] for name in config.objectives]


def _of_study(source: str, config: TuneConfig) -> Iterator[Known]:
    storage, _, name = source.rpartition("#")
    hidden = hide_secrets(source)
    try:
        url = make_url(storage)
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():  # SQLite would make it
            raise UserError(f"warm_start {hidden}: there is no file {url.database}")
        names = optuna.get_all_study_names(storage)
        if name not in names:
            raise UserError(f"warm_start {hidden}: it has no study {quoted(name)}{nearest(name, names)}")
        study = optuna.load_study(study_name=name, storage=storage)
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    except UserError:
        raise
    except Exception as error:  # of SQLAlchemy, of a driver, or of Optuna, by what is wrong
        raise UserError(f"warm_start {hidden}: it cannot be read: {reason(error)}") from error
    directions = [direction.name.lower()[:3] for direction in study.directions]
    if directions != list(config.objectives.values()):
        raise UserError(
            f"warm_start {hidden}: its objectives are {', '.join(directions)}, not "
            f"{', '.join(config.objectives.values())}"
        )
    called, wanted = study.metric_names, list(config.objectives)
    if called is not None and called != wanted:
        raise UserError(f"warm_start {hidden}: its objectives are {', '.join(called)}, not {', '.join(wanted)}")
    for trial in trials:
        yield trial.params, list(trial.values)


def _fits(params: Mapping[str, Param], values: Mapping[str, Any]) -> bool:
    """Return True if some values are what a trial of the tuning may have."""
    placed: dict[str, Any] = {}
    for name in in_order(params):
        if is_active(params[name], placed) != (name in values):
            return False
        if name in values:
            value, stored = values[name], encode(values[name])
            for choice in params[name].choices or ():
                if (known := encode(choice)) == stored and type(known) is type(stored):
                    value = choice  # Optuna's studies have it as JSON
            if value not in params[name]:
                return False
            placed[name] = value
    return True


def _frozen(params: Mapping[str, Param], values: Mapping[str, Any], results: list[float], source: str) -> FrozenTrial:
    stored = {name: encode(value) for name, value in values.items()}
    distributions: dict[str, BaseDistribution] = {name: distribution(params[name]) for name in stored}
    return create_trial(params=stored, distributions=distributions, values=results, user_attrs={FROM: source})
