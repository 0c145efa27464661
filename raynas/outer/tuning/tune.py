"""Tuning as an experiment, of a preset's settings or of a function of the user's own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raynas.cluster.resources import Resources
from raynas.errors import UserError, reason
from raynas.outer.experiment import run_experiment
from raynas.outer.trials import Stop
from raynas.outer.tuning.function import call_function, check_callable, code_of
from raynas.outer.tuning.params import grid
from raynas.outer.tuning.pruners import build_pruner
from raynas.outer.tuning.study import Study
from raynas.outer.tuning.study_file import STUDY
from raynas.outer.tuning.tuned import Tuned
from raynas.outer.tuning.warm_start import EARLIER, earlier_trials
from raynas.outer.work import Work
from raynas.presets.tune import TuneConfig
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.files import TUNING
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun
from raynas.search.optuna_samplers import SAMPLERS, build_sampler

FUNCTION = "function.yaml"
"""File with a digest of the code of the function that is tuned."""

LIMITS = {"trials", "seconds", "target", "patience"}
"""Settings that another command may change: they decide when a tuning ends, not what it finds."""


def tune_function(
    function: Callable[..., Any],
    config: TuneConfig,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    at_a_time: int | None = None,
    progress: Progress = silent,
) -> Tuned:
    """Tune the arguments of a function, or go on with it; see `raynas.tune`."""
    check(config)
    check_callable(function)
    _check_travels(function)
    resources = replace(resources, workers=0, replicas=0)  # the trial's own process calls it
    about = {"function": getattr(function, "__qualname__", type(function).__name__)}
    work = partial(call_function, function, config.objectives)
    return tune(config, about, work, run_dir, resources, at_a_time, reporter(progress), code_of(function))


def tune(
    config: TuneConfig,
    about: Mapping[str, Any],
    work: Work,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    at_a_time: int | None,
    progress: Progress,
    code: str | None = None,
) -> Tuned:
    """Carry a checked tuning out, or go on with it.

    Args:
        about: what the results depend on besides the settings of the tuning.
        code: a digest of the user's function that is tuned, if one is; a change of it is told.

    Raises:
        RunDirError: the run directory is in use, or began with other settings.
        UserError: a study to begin with does not fit.
    """
    settings = {**about, "tune": config.model_dump(mode="json", exclude=LIMITS)}
    begins = not has_begun(run_dir, TUNING)
    earlier = earlier_trials(config, about.get("spaces", ()), progress) if begins else []
    run = Run(run_dir, create=True)
    with run.lock():
        begun = begin(run, TUNING, settings)
        if begins:
            for file in (STUDY, EARLIER):  # of an attempt in which no trial has begun
                run.delete(file)
            if earlier:
                run.write_json(EARLIER, earlier)
        if not begun:
            if code is not None:
                run.write_yaml(FUNCTION, {"code": code})
        elif run.exists(FUNCTION) and run.read_yaml(FUNCTION, "code")["code"] != code:
            warnings.warn(
                f"the function has changed since {run.name} began: results so far stay, beside those of the new "
                "function; if they cannot be compared, take another run directory",
                stacklevel=5,
            )
        study = Study(run, config)
        objective, *others = config.objectives
        limits = {name: getattr(config, name) for name in LIMITS}
        stop = Stop(objective=None if others else objective, better=config.objectives[objective], **limits)
        run_experiment(run, study, work, resources, stop, at_a_time, progress)
    tuned = Tuned(run, config.objectives)
    if tuned.best is None and (failed := [trial for trial in tuned.trials if trial.state == "failed"]):
        told = f"no trial has finished, and {len(failed)} failed, the first with: {failed[0].reason}"
        warnings.warn(f"{run.name}: {told}", stacklevel=5)
    return tuned


def _check_travels(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be sent to other processes."""
    from ray import cloudpickle

    try:
        cloudpickle.dumps(function)
    except Exception as error:  # of whatever the function holds
        raise UserError(f"this function cannot be sent to the trials' processes: {reason(error)}") from error


def check(config: TuneConfig) -> None:
    """Refuse a sampler or a pruner that cannot be built, and a grid without end."""
    combinations = grid(config.params) if config.sampler.name == "grid" else ()
    build_sampler(config.sampler.name, config.sampler.options, objectives=len(config.objectives), grid=combinations)
    build_pruner(config.pruner)
    if config.sampler.name == "cmaes" and all(param.choices or param.when for param in config.params.values()):
        raise UserError("sampler cmaes learns ranges of numbers that all trials have, and there are none: take tpe")
    kind = SAMPLERS.get(config.sampler.name)
    if config.warm_start and kind is not None and not kind.from_any:
        able = " or ".join(name for name, each in SAMPLERS.items() if each.from_any)
        raise UserError(
            f"warm_start: sampler {config.sampler.name} learns nothing from trials that it did not propose: "
            f"take {able}, or leave warm_start out"
        )
    limits = (config.trials, config.seconds, config.target, config.patience)
    if config.sampler.name != "grid" and limits == (None,) * 4:
        raise UserError("this tuning would never end: give trials, seconds, target or patience")
