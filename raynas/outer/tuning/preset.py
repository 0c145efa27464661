"""Tuning of a preset's settings: its checks, and what is done in a trial."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from raynas.cluster.resources import Resources
from raynas.config import validate
from raynas.documents import Document
from raynas.errors import ConfigError, UserError, together
from raynas.outer.measures import (
    MEASURES,
    RETRAINS,
    SEARCHES,
    TRAINING,
    carry_out,
    check_energy,
    check_limits,
    check_measures,
    cost_limit,
)
from raynas.outer.tuning.function import numbers
from raynas.outer.tuning.tune import check, tune
from raynas.outer.tuning.tuned import Tuned
from raynas.outer.work import Report
from raynas.phases.images import check_images
from raynas.phases.inputs import space_of
from raynas.phases.preflight import preflight
from raynas.phases.where import placed
from raynas.presets.preset import Preset, override
from raynas.presets.tune import Param, TuneConfig, conditions, in_order, is_active
from raynas.progress.reporter import Progress, reporter, silent
from raynas.results.run_dir import plain
from raynas.runs.files import TUNING
from raynas.runs.run import Run
from raynas.runs.settings import has_begun
from raynas.text import shown

PROBED = ("probes", "searched", "hypervolume", "retrained")
"""Objectives that the probes' accuracy after an epoch says something of."""


def tune_preset(
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    at_a_time: int | None = None,
    progress: Progress = silent,
    section: Document | None = None,
) -> Tuned:
    """Tune a preset as its section `tune` says, or go on with it; see `raynas.tune`.

    Args:
        section: the section as it stands in a file, for messages about its parameters; None if it is of none.
    """
    config, resources = preset.tune, placed(resources, several=True)
    if config is None:
        raise UserError("this preset says nothing of tuning: give it a section tune, or a file with one (--tune FILE)")
    progress = reporter(progress)
    check(config)
    _check_objectives(config, preset)
    spaces = _check_params(config, preset, section)
    _check_pruner(config, preset)
    if not has_begun(run_dir, TUNING):
        if "energy" in config.objectives:
            check_energy(at_a_time, progress)
        check_images(preset, resources, progress)
    preflight(_applied(preset, next(_extremes(config.params))[1]), resources, progress=progress, look=False)
    common = preset.model_copy(update={"tune": None})
    about = {"preset": common.model_dump(mode="json", exclude={"space", "reference", "tune"}), "spaces": spaces}
    work = partial(tune_trial, common.model_dump(mode="json"), list(config.objectives), resources)
    return tune(config, about, work, run_dir, resources, at_a_time, progress)


def tune_trial(
    preset: Mapping[str, Any],
    objectives: list[str],
    resources: Resources,
    folder: str,
    values: Mapping[str, Any],
    report: Report,
) -> dict[str, float]:
    """Carry a trial of a preset out as far as the objectives need.

    Args:
        preset: the preset as plain values.
    """
    changed = _applied(validate(Preset, Document(dict(preset), "preset")), values)
    results = carry_out(changed, folder, objectives, resources, print, report)
    return numbers(results, objectives)


def _check_objectives(config: TuneConfig, preset: Preset) -> None:
    check_measures(config.objectives, preset, tuned=True)
    for name, direction in config.objectives.items():
        if direction != (better := MEASURES[name].better):
            raise UserError(f"objectives: {name} is better the {'more' if better == 'max' else 'less'} it is: {better}")
        if config.pruner.name != "none" and name not in PROBED:
            raise UserError(
                f"pruner: trials are ended by the accuracy of the probes, which says nothing of {name}: leave it out"
            )


def _check_pruner(config: TuneConfig, preset: Preset) -> None:
    """Refuse a pruner of trials none of which is probed before its last epoch."""
    recipes = [_applied(preset, values).recipe for _, values in _extremes(config.params)]
    if config.pruner.name != "none" and all(recipe.health.probe_every >= recipe.epochs for recipe in recipes):
        raise UserError(
            f"pruner: the probes are scored every {recipes[0].health.probe_every} epochs, and there are "
            f"{recipes[0].epochs}, so that no trial would be ended early: set recipe.health.probe_every below the "
            "number of epochs, or take no pruner"
        )


def _check_params(config: TuneConfig, preset: Preset, section: Document | None) -> list[dict[str, Any]]:
    """Refuse parameters that the preset has not, or values that it does not take; return all spaces of trials."""
    needs = {MEASURES[name].needs for name in config.objectives}
    acting = [*TRAINING, *["search"] * bool(needs & SEARCHES), *["retrain"] * bool(needs & RETRAINS)]
    wrong: dict[str, str] = {}
    for name in config.params:
        part = name.partition(".")[0]
        if part == "tune":
            wrong[name] = "a tuning does not tune itself"
        elif part in type(preset).model_fields and part not in acting:
            depends = f"{', '.join(config.objectives)} {'does' if len(config.objectives) == 1 else 'do'}"
            wrong[name] = f"{depends} not depend on it: leave it out, or add an objective"
    spaces: list[dict[str, Any]] = []
    limits = []
    for name, values in _extremes(config.params):
        if wrong.keys() & {name, *_conditions(config.params, name)}:
            continue
        values = {other: value for other, value in values.items() if other not in wrong}
        try:
            changed = _applied(preset, values)
            space = plain((found := space_of(changed)).to_dict())
        except ConfigError as error:
            blamed = _blamed(preset, config.params, values) or name
            wrong[blamed] = f"{shown(values[blamed])}: {error}"
        else:
            limits.append(cost_limit(changed.search, found))
            if space not in spaces:
                spaces.append(space)
    if wrong:
        raise together([_error(section, name, message) for name, message in wrong.items()])
    if "hypervolume" in config.objectives:
        check_limits(limits)
    return spaces


def _error(section: Document | None, name: str, message: str) -> ConfigError:
    """Return the error about a parameter, with its line if it stands in a file."""
    if section is not None and ("params", name) in section.lines:
        return section.error(("params", name), message)
    return ConfigError(f"tune.params: {name}: {message}")


def _blamed(preset: Preset, params: Mapping[str, Param], values: Mapping[str, Any]) -> str | None:
    """Return the parameter whose value is refused with its conditions alone; None if no single one is."""
    for name, value in values.items():
        try:
            changed = _applied(preset, {**_conditions(params, name), name: value})
            space_of(changed)
        except ConfigError:
            return name
    return None


def _extremes(params: Mapping[str, Param]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the values of trials in which a parameter has each of its choices, or either end of its range."""
    for name, param in params.items():
        for value in param.choices if param.choices is not None else dict.fromkeys((param.low, param.high)):
            wanted = {name: value, **_conditions(params, name)}
            values: dict[str, Any] = {}
            for other in in_order(params):
                if is_active(params[other], values):
                    first = params[other].choices or [params[other].low]
                    values[other] = wanted.get(other, first[0])
            yield name, values


def _conditions(params: Mapping[str, Param], name: str) -> dict[str, Any]:
    """Return values of other parameters for which there is a parameter."""
    return {other: values[0] for other, values in conditions(params, name).items()}


def _applied(preset: Preset, values: Mapping[str, Any]) -> Preset:
    """Return a preset with a trial's values: wholes before their parts, names before the options that go with them."""
    changes: dict[str, Any] = {}
    for name in sorted(values, key=lambda name: (name.count("."), not name.endswith(".name"))):
        if name.startswith("fix."):  # names of dimensions have dots of their own
            changes["fix"] = {**changes.get("fix", preset.fix), name.removeprefix("fix."): values[name]}
        else:
            changes[name] = values[name]
    return override(preset, changes)
