"""Public functions that make many trainings: evolution of spaces, ablations, tuning."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from raynas.api.given import DataLike, PresetLike, RunLike, check_place, chosen_preset, typed
from raynas.cluster.resources import Resources
from raynas.config import Positive, Seeds
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from raynas.outer.evolution.trials import Trial
    from raynas.outer.tuning.tuned import Tuned
    from raynas.results.schemas import Row


@typed
def evolve_space(
    preset: PresetLike,
    run_dir: RunLike,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    values: Mapping[str, Any] | None = None,
    trials: Positive | None = None,
    at_a_time: Positive | None = None,
    search: bool = False,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Trial]:
    """Search the search space (S3): train a supernet, measure the space with it, change its choices, repeat.

    Args:
        preset: its space is the initial one; `space_evolution` says how it evolves.
        run_dir: the folder to write. With `values` each trial is a run directory in it; without, it is the one trial.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key, common to all trials.
        values: lists of values to try in all combinations, by dotted key: `{"space_evolution.tau": [0.2, 0.4]}`.
        trials: let Optuna suggest this many of the combinations, one after the other; None tries all of them.
        at_a_time: trials side by side; None for as many as the cluster has room for. Not with `trials`.
        search: carry out the preset's search in every space of every trial as well.
        resources: workers and replicas of each trial; None for one and two.
        progress: called with lines of text.

    Returns:
        The trials, best first (lowest E-T error); failed ones last, with their `error`.

    Raises:
        RunDirError: the experiment began with other settings.
        UserError: a combination cannot be carried out, there is no room, or every trial failed.
    """
    for key, listed in (values or {}).items():
        if not isinstance(listed, Sequence) or isinstance(listed, str) or not listed:
            raise UserError(f"--try {key}: give a list of values, such as {key}=[0.2,0.4]")
    checked = chosen_preset(preset, data, overrides)
    check_place(run_dir, checked.data)
    from raynas.outer.evolution.trials import run_trials

    return run_trials(checked, run_dir, resources or Resources(), values, trials, at_a_time, search, progress)


@typed
def ablate(
    ablation: str | os.PathLike[str] | Mapping[str, Any],
    run_dir: RunLike,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    seeds: Seeds | None = None,
    at_a_time: Positive | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Carry out an ablation, rows of changes to a preset with several seeds compared with a baseline, or go on with it.

    What rows have in common is done once: those that differ in search alone share a supernet, those that differ in
    retraining alone a search. Trials that failed are tried again by the same call, and more seeds can be added.

    Args:
        ablation: a shipped ablation, such as `digits/ablation_vitas_v2_recipe`, a YAML file, or its values.
        run_dir: the folder to write: `ablation.html`, `.md`, `.arrow` and `.png`, written anew after each trial, and a
            run directory for each supernet in `trials`.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key, common to all rows.
        seeds: used in place of the ablation's.
        at_a_time: trials side by side; None for as many as there is room for.
        resources: of each trial; None for one worker and one replica on a cluster, else for the trial's own process,
            with one CPU.
        progress: called with lines of text.

    Returns:
        A row for each row of the table and each measure: `mean`, `half` the width of its 95 % interval, `difference` to
        the baseline paired by seeds, `difference_half`, `decided`, `seeds_to_decide`, and others.

    Raises:
        RunDirError: the ablation began with other rows or measures.
        UserError: a row cannot be carried out, two are equal, or there is no room.
    """
    from raynas.outer.ablation.loop import run_ablation
    from raynas.phases.where import default_resources
    from raynas.presets.ablation import load_ablation

    read = load_ablation(ablation)
    preset = chosen_preset(read.preset, data, overrides)
    check_place(run_dir, preset.data)
    resources = resources or replace(default_resources(), cpus=1)
    wanted = list(read.config.seeds if seeds is None else seeds)
    return run_ablation(read, preset, run_dir, resources, wanted, at_a_time, progress).compared()


@typed
def tune(
    what: PresetLike | Callable[..., Any],
    run_dir: RunLike,
    params: Mapping[str, Any] | None = None,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    tune: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    at_a_time: Positive | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
    **settings: Any,
) -> Tuned:
    """Tune a preset, or a function of your own: trials with values that Optuna suggests, side by side on Ray.

    Called again with the same arguments, it goes on: no finished trial is repeated, no unfinished one lost.

    Args:
        what: a preset, or a function of a configuration: `function(config)`, or `function(config, trial)`, where
            `trial.report(value)` tells a value on the way and `trial.folder` is a folder of its own. It returns a
            number, or a mapping of the objectives.
        run_dir: the run directory to write, with a run directory for each trial in it.
        params: the parameters: `{"lr": {"low": 1e-4, "high": 1e-1, "log": True}, "opt": {"choices": ["sgd", "adam"]}}`.
            For a preset they are keys of it, and None takes those of its section `tune`.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key, common to all trials.
        tune: settings in place of the preset's section `tune`, or a YAML file with them.
        at_a_time: trials side by side; None for as many as the cluster has room for. With 1 a study repeats itself.
        resources: workers and replicas of each trial of a preset; None for one and one on a cluster, else each trial's
            own process trains and scores. A function is called in a process with `cpus` and `gpus` of its own.
        progress: called with lines of text.
        **settings: further settings of section `tune`: `objectives` (`{"accuracy": "max"}`), `sampler`, `pruner`,
            `trials`, `seconds`, `target`, `patience`, `seed`, `warm_start`; see `raynas.presets.tune.TuneConfig`.

    Returns:
        The trials, the best of them, and Optuna's study.

    Raises:
        RunDirError: the run directory is in use, or began with other settings.
        UserError: a parameter, a value, an objective, a sampler or the preset is wrong; nothing is written then.
    """
    from raynas.config import validate
    from raynas.documents import Document, read_yaml
    from raynas.presets.preset import Preset, tuning_section
    from raynas.presets.tune import TuneConfig

    if params is not None:
        settings["params"] = dict(params)
    read = None
    if tune is not None:
        read = Document(dict(tune), "tune") if isinstance(tune, Mapping) else read_yaml(os.fspath(tune))
        if isinstance(read.data, dict) and read.data.keys() == {"tune"}:
            read = read.part(("tune",))
        if isinstance(read.data, dict):
            read.data.update(settings)
    if callable(what) and not isinstance(what, Preset):
        check_place(run_dir)
        if data is not None or overrides is not None:
            raise UserError("data and overrides are for presets: bind them to the function")
        config = validate(TuneConfig, read or Document(settings, "tune"))
        if "objectives" not in config.model_fields_set:
            raise UserError("say what the function returns, and whether more is better: objectives={'loss': 'min'}")
        from raynas.outer.tuning.tune import tune_function

        return tune_function(what, config, run_dir, resources or Resources(0, 0), at_a_time, progress)
    checked = chosen_preset(what, data, overrides)
    check_place(run_dir, checked.data)
    if read is not None:
        checked = checked.model_copy(update={"tune": validate(TuneConfig, read)})
    elif settings:
        before = {} if checked.tune is None else checked.tune.model_dump()
        checked = checked.model_copy(update={"tune": validate(TuneConfig, Document({**before, **settings}, "tune"))})
    from raynas.cluster.connection import on_cluster
    from raynas.outer.tuning.preset import tune_preset

    if read is None and not isinstance(what, Preset):
        read = tuning_section(what)
    given = resources or (Resources(1, 1) if on_cluster() else Resources(0, 0))
    return tune_preset(checked, run_dir, given, at_a_time, progress, read)
