"""The public functions: each does what the command of its name does.

They take what a user has at hand (names, paths, Python values), turn it into checked values, and call the phase that
does the work. Imports are local so that `import raynas` stays light and a missing run
directory is reported before torch is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from raynas.arguments import checked
from raynas.cluster.resources import Resources
from raynas.config import Name, Natural, Positive, Seed, Seeds
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from raynas.data.config import DataConfig
    from raynas.outer.evolution.trials import Trial
    from raynas.outer.tuning.tuned import Tuned
    from raynas.phases.check import Finding
    from raynas.phases.pipeline import PipelineResult
    from raynas.presets.preset import Preset
    from raynas.reports.status import Work
    from raynas.results.schemas import Row
    from raynas.runs.run import Run
    from raynas.space import Arch, Space

RunLike: TypeAlias = "Run | str | os.PathLike[str]"
"""A run directory: opened, or its path or URI (any pyarrow filesystem: `s3://`, `gs://`)."""

PresetLike: TypeAlias = "Preset | str | os.PathLike[str]"
"""A preset, the name of a shipped one, or the path of a YAML file."""

DataLike: TypeAlias = "DataConfig | Mapping[str, Any] | str | os.PathLike[str]"
"""A dataset: a name, a folder, a URI, `module:function`, or settings as in a preset."""


typed = checked(
    Run="raynas.runs.run",
    Preset="raynas.presets.preset",
    DataConfig="raynas.data.config",
    Arch="raynas.space",
    Space="raynas.space",
)


# -- making a run ------------------------------------------------------------------------------------------------------


@typed
def train(
    preset: PresetLike,
    run_dir: RunLike = "runs/supernet",
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> Run:
    """Train the supernet of a preset into a run directory, or continue the training.

    Called again with the same arguments, it continues from the last checkpoint, and returns at once if training is
    finished. The number of workers may change in between.

    Args:
        preset: names the space, the plan and the recipe.
        run_dir: the run directory to write; on a cluster all nodes must reach it.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key: `{"recipe.epochs": 3}`.
        resources: the Ray Train workers; None for one. With `Resources(workers=0)` this process trains, without Ray.
        progress: called with lines of text.

    Returns:
        The run directory, with the supernet's weights and the tables `training`, `probes` and `phases`.

    Raises:
        ConfigError: preset, data and number of workers do not fit each other.
        InfeasibleError: nothing in the space meets the sampler's budget or the search's constraints.
        RunDirError: the run directory is in use, or began with other settings.
        TrainingCollapsed: training broke down twice.
        UserError: the cluster lacks the resources, or training failed for good.
    """
    checked = _preset(preset, data, overrides)
    _refuse_nested(run_dir)
    from raynas.phases.preflight import preflight
    from raynas.phases.train import train as train_supernet

    return train_supernet(preflight(checked, resources or Resources(), run_dir, progress), run_dir, progress)


@typed
def import_model(
    system: str,
    checkpoint: str | Path,
    run_dir: RunLike,
    data: DataLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    space: str | None = None,
    preset: PresetLike | None = None,
    weights: str | Path | None = None,
    size: Positive | None = None,
    progress: Progress = silent,
) -> Run:
    """Read a released supernet, or a trained network, into a new run directory.

    A timm model, or a checkpoint of one network, is a space of one arch. It is the run's `best` at once: evaluate it,
    or fine-tune it with `retrain`.

    Args:
        system: the layout of the checkpoint: `autoformer`, `vit-resnas`, `nasvit` (also AlphaNet), `s3` (also Swin) or
            `timm`; or `transfer`, for a network of raynas.
        checkpoint: the file as released; for timm the name of a model, such as `twins_svt_small`; for transfer a run
            directory, whose winner is taken, the folder of a network, or the name of a timm model.
        run_dir: the run directory to write.
        data: the dataset that subnets are scored on. With other classes than the checkpoint's its classifier is made
            anew, and has to be trained.
        overrides: changes to the preset by dotted key.
        space: the space or arch of the checkpoint, by name or path; None to recognise it from the checkpoint.
        preset: settings of search and retraining; None for the system's own preset.
        weights: a file with a timm model's weights, instead of those that timm downloads.
        size: height and width of the images in pixels; None for the data's, or the checkpoint's.
        progress: called with lines of text.

    Raises:
        RunDirError: the run directory holds another supernet.
        UserError: the checkpoint cannot be read or fetched, is of another space or not finite, or the images have
            another number of channels.
    """
    from raynas.phases.import_ import TRANSFER, import_supernet, preset_of

    checked = _preset(preset or preset_of(system), data, overrides, check_data=False)
    _refuse_nested(run_dir)
    if system == TRANSFER:
        if space is not None:
            raise UserError("the space of a trained network follows from it: leave the space out")
        from raynas.phases.transfer import transfer

        return transfer(checkpoint, checked, run_dir, size, weights, progress)
    return import_supernet(system, checkpoint, run_dir, checked, space, weights, size, progress)


@typed
def pipeline(
    preset: PresetLike,
    run_dir: RunLike,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> PipelineResult:
    """Run a whole preset: train, search, retrain, evaluate, export, report; or continue where it stopped.

    Args:
        preset: settings of all phases.
        run_dir: the run directory to write.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key.
        resources: workers that train the supernet and each network, and replicas that score subnets, the first of which
            evaluates, too; None for one and two. With neither workers nor replicas Ray is not started.
        progress: called with lines of text.

    Raises:
        UserError: settings or data are wrong, the budget is impossible, or the run directory is busy or began with
            other settings.
    """
    checked = _preset(preset, data, overrides)
    _refuse_nested(run_dir)
    from raynas.phases.pipeline import pipeline as run_pipeline

    return run_pipeline(checked, run_dir, resources or Resources(), progress)


@typed
def adapt(
    model: str | os.PathLike[str],
    run_dir: RunLike,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    preset: PresetLike = "adapt",
    space: Space | str | os.PathLike[str] | None = None,
    weights: str | Path | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> PipelineResult:
    """Adapt a trained model to a dataset and a budget: find the best smaller network in it; or continue.

    The model becomes the largest subnet of an elastic space: narrower, with fewer heads and hidden units, and without
    some of its blocks. Its units are ordered by importance, its supernet is trained with the model as the teacher, and
    searched; the winner is fine-tuned, evaluated and exported. Other budgets need no further training: search the run
    again under other names (`search_run`).

    Args:
        model: the name of a timm model; a run directory, whose winner is taken; or the folder of a network that
            `export` or `retrain` wrote.
        run_dir: the run directory to write.
        data: used in place of the preset's dataset. With other classes than the model's its classifier is made anew.
        overrides: changes to the preset by dotted key: `{"search.constraints.macs": [None, 2e9]}`.
        preset: settings of all phases.
        space: a space, or its file, instead of the one that is derived from the model (see `elastic_space`).
        weights: a file with a timm model's weights, instead of those that timm downloads.
        resources: workers that train the supernet and each network, and replicas that score subnets, the first of which
            evaluates, too; None for one and two. With neither workers nor replicas Ray is not started.
        progress: called with lines of text.

    Raises:
        InfeasibleError: no network in the space meets the limits.
        RunDirError: the run directory is in use, or began with another model or other settings.
        UserError: the model cannot be read, the images have another number of channels, or settings are wrong.
    """
    checked = _preset(preset, data, overrides, check_data=False)
    _refuse_nested(run_dir)
    from raynas.phases.adapt import adapt as adapt_model

    return adapt_model(model, checked, run_dir, resources or Resources(), weights, _space(space), progress)


@typed
def elastic_space(
    model: str | os.PathLike[str],
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    preset: PresetLike = "adapt",
    weights: str | Path | None = None,
    progress: Progress = silent,
) -> Space:
    """Return the space that `adapt` derives from a trained model; `save` writes it as a file to be edited.

    Args:
        model: as for `adapt`.
        data: the dataset, for whose images and classes the space is; None for those of the preset, or of the model.
        overrides: changes to the preset by dotted key; those of `adapt.elastic` say what is elastic.
        preset: settings of all phases.
        weights: a file with a timm model's weights, instead of those that timm downloads.
        progress: called with lines of text.

    Raises:
        UserError: the model cannot be read, or the data do not fit it.
    """
    from raynas.phases.adapt import derive

    return derive(model, _preset(preset, data, overrides, check_data=False), weights, progress)


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
    checked = _preset(preset, data, overrides)
    _refuse_nested(run_dir)
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
    preset = _preset(read.preset, data, overrides)
    _refuse_nested(run_dir)
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
    from raynas.config import Document, read_yaml, validate
    from raynas.presets.preset import Preset
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
    _refuse_nested(run_dir)
    if callable(what) and not isinstance(what, Preset):
        if data is not None or overrides is not None:
            raise UserError("data and overrides are for presets: bind them to the function")
        config = validate(TuneConfig, read or Document(settings, "tune"))
        if "objectives" not in config.model_fields_set:
            raise UserError("say what the function returns, and whether more is better: objectives={'loss': 'min'}")
        from raynas.outer.tuning.tune import tune_function

        return tune_function(what, config, run_dir, resources or Resources(0, 0), at_a_time, progress)
    checked = _preset(what, data, overrides)
    if read is not None:
        checked = checked.model_copy(update={"tune": validate(TuneConfig, read)})
    elif settings:
        before = {} if checked.tune is None else checked.tune.model_dump()
        checked = checked.model_copy(update={"tune": validate(TuneConfig, Document({**before, **settings}, "tune"))})
    from raynas.cluster.connection import on_cluster
    from raynas.outer.tuning.preset import tune_preset

    given = resources or (Resources(1, 1) if on_cluster() else Resources(0, 0))
    return tune_preset(checked, run_dir, given, at_a_time, progress)


# -- working on a run --------------------------------------------------------------------------------------------------


@typed
def search_run(
    run: RunLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    name: Name = "search",
    resources: Resources | None = None,
    random: bool = False,
    images: Positive | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    progress: Progress = silent,
) -> Arch:
    """Search a trained supernet as its preset says, or continue the search.

    `raynas.search` is the package of the algorithms; to use one in a loop of your own, see `raynas.Evolution` and
    `raynas.ScorePool`.

    Args:
        run: holds a trained supernet.
        overrides: changes to the run's preset by dotted key: `{"search.constraints.macs": [None, 4.5e9]}`.
        name: name of this search; a run may hold several. Only the winner of `search` is the run's `best`.
        resources: the replicas that score subnets; None for two. Without replicas this process scores, without Ray.
        random: run random search with the same number of evaluations afterwards, for comparison.
        images: score on this many images of the search split; None for all.
        precision: precision of the forward passes; `bf16` and `fp16` use autocast.
        progress: called with lines of text.

    Returns:
        The winner; with several objectives the first arch of the front (`run.search(name).front` has all).

    Raises:
        InfeasibleError: nothing in the space meets the constraints.
        RunDirError: the run holds no trained supernet, or a search of that name with other settings.
        UserError: the search cannot be built, or no arch could be scored or timed.
    """
    opened = _open(run)
    preset = run_preset(opened, overrides)
    from raynas.phases.search import search_fully
    from raynas.runs.searches import Scoring

    with opened.lock():
        scoring = Scoring(images=images, precision=precision)
        search_fully(opened, preset.search, resources or Resources(), scoring, name, random, progress)
    return opened.search(name).winner


@typed
def rank(
    run: RunLike,
    overrides: Mapping[str, Any] | None = None,
    *,
    archs: Positive = 2000,
    buckets: Positive = 8,
    train: Natural = 0,
    finetune_epochs: Positive | None = None,
    seeds: Seeds | None = None,
    truth: str | Path | None = None,
    resources: Resources | None = None,
    parallel: Positive | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure how well inherited weights rank subnets: by MACs, and against networks that were trained alone.

    Args:
        run: holds a trained supernet.
        overrides: changes to the run's preset by dotted key.
        archs: number of subnets to score, spread evenly over ranges of MACs.
        buckets: number of these ranges.
        train: number of them to train alone, as the truth.
        finetune_epochs: also fine-tune these from inherited weights for so many epochs.
        seeds: seeds of these trainings; None for seed 0.
        truth: a Parquet file of networks trained elsewhere, with columns `network`, `values` and `accuracy`.
        resources: the replicas that score subnets, and the workers of each training; None for two and one. Without them
            this process scores and trains, without Ray.
        parallel: trainings side by side; None for as many as the cluster has room for.
        progress: called with lines of text.

    Returns:
        The new rows of table `rankings`: Kendall's tau and other statistics, with intervals.

    Raises:
        UserError: the settings or the truth table do not fit.
    """
    opened = _open(run)
    preset = run_preset(opened, overrides)
    if parallel and not train:
        raise UserError("--parallel applies to networks trained alone: give their number, --train N")
    resources = resources or Resources()
    if parallel not in (None, 1) and not resources.workers:
        resources = replace(resources, workers=1)
    if resources.gpus and not resources.replicas and not resources.workers:
        raise UserError("--gpu gives a GPU to each replica and worker: give --replicas")
    from raynas.phases.rank import rank_run
    from raynas.phases.search import make_scorer
    from raynas.runs.searches import Scoring

    scorer = make_scorer(opened, Scoring(), resources)
    with opened.lock():
        return rank_run(
            opened,
            scorer,
            preset.retrain_recipe,
            archs=archs,
            buckets=buckets,
            train=train,
            finetune_epochs=finetune_epochs,
            seeds=seeds,
            truth=truth,
            parallel=parallel,
            progress=progress,
            resources=resources,
        )


@typed
def retrain(
    run: RunLike,
    archs: Sequence[Arch | str] = ("best",),
    overrides: Mapping[str, Any] | None = None,
    *,
    start: Literal["scratch", "inherited", "trained"] | None = None,
    size: Positive | None = None,
    seeds: Seeds | None = None,
    train_on: Literal["train", "train+search"] | None = None,
    data: DataLike | None = None,
    run_dir: RunLike | None = None,
    preset: PresetLike | None = None,
    weights: str | Path | None = None,
    resources: Resources | None = None,
    parallel: Positive | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Train found networks on their own, or continue their training.

    With `data` and `run_dir` a trained network is transferred to other images: it becomes the `best` of a run of its
    own, with a new classifier if the classes are others, and is fine-tuned there.

    Args:
        run: the run directory; with `data` also the folder of a network, or the name of a timm model.
        archs: networks to train: archs, or `best`, `reference`, the id of a scored subnet, an arch file.
        overrides: changes to the run's preset by dotted key.
        start: weights to begin with: random ones (`scratch`), those inherited from the supernet (`inherited`), or
            those of the retrained network (`trained`: fine-tune it at another image size). None: as the preset says.
        size: height and width of the images in pixels; None: the run's, for `trained` the preset's.
        seeds: one training with each; None: as the preset says.
        train_on: images to train on; None: as the preset says.
        data: other images than the run's.
        run_dir: with other images: the run directory to write.
        preset: with other images: the settings; None for `transfer`.
        weights: with other images: a file with a timm model's weights, instead of those that timm downloads.
        resources: the Ray Train workers of each network; without workers this process trains one after the other. None:
            on a cluster one worker; else this process for one network, or with `parallel=1`, and one worker for each of
            several.
        parallel: trainings side by side; None for as many as the cluster has room for.
        progress: called with lines of text.

    Returns:
        The rows of table `networks`, archs by seeds.

    Raises:
        RunDirError: such a network was trained with other settings.
        TrainingCollapsed: a training broke down twice; the other networks are finished first.
        UserError: an arch is not found, is for other images or classes than the run's, or the recipe does not fit.
    """
    if data is not None:
        if run_dir is None:
            raise UserError("other images than the run's are for a run of their own: name its directory (--run DIR)")
        source = os.fspath(run) if isinstance(run, str | os.PathLike) else run.name
        opened = import_model(
            "transfer", source, run_dir, data, overrides, preset=preset, weights=weights, size=size, progress=progress
        )
        size = None
    elif run_dir is not None or preset is not None or weights is not None:
        raise UserError("--run, --preset and --weights are for other images than the run's: give them (--data)")
    else:
        opened = _open(run)
    if start == "trained" and size is not None:
        overrides = {"retrain.finetune.size": size, **(overrides or {})}
    preset = run_preset(opened, overrides)
    start, train_on = start or preset.retrain.start, train_on or preset.retrain.train_on
    seeds = preset.retrain.seeds if seeds is None else seeds
    from raynas.phases.recipes import recipe_of
    from raynas.phases.retrain import finetune_resized
    from raynas.phases.retrain import retrain as retrain_archs

    found = [_arch(opened, arch, progress) for arch in archs]
    if start != "trained":
        how: Literal["finetuned", "scratch"] = "finetuned" if start == "inherited" else "scratch"
        recipe = recipe_of(preset, opened.space.input_size, progress)
        return retrain_archs(
            opened,
            found,
            recipe,
            how,
            seeds,
            train_on,
            parallel,
            progress,
            size=size,
            resources=resources,
            windows=preset.retrain.windows,
        )
    finetune = preset.retrain.finetune
    if finetune is None:
        raise UserError("--from trained fine-tunes at another image size: give --size, or retrain.finetune.size")
    networks = [opened.trained_network(arch, seed, train_on) for arch in found for seed in seeds]
    recipe = recipe_of(preset, opened.space.input_size, progress, finetune=True)
    windows = preset.retrain.windows
    return finetune_resized(
        opened, networks, recipe, finetune.size, parallel, progress, resources=resources, windows=windows
    )


@typed
def evaluate(
    run: RunLike,
    arch: str | None = None,
    *,
    again: bool = False,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure finished networks on the test split. Every reading of it is counted in the rows.

    Args:
        run: the run directory.
        arch: `best`, `reference`, the id of a scored subnet or an arch file; `front` or `NAME/front` for all archs of
            a search's front. None for the winner and every retrained network.
        again: measure even networks that have a row already.
        resources: with replicas, a Ray task measures, with the CPUs and GPUs of one replica; else this process. None:
            a task on a cluster, else this process.
        progress: called with lines of text.

    Returns:
        Rows of table `evaluations`, one for each network.

    Raises:
        RunDirError: another process writes to the run directory, or files are missing.
        UserError: there is no such arch, nothing is finished, or the data has no usable test split.
    """
    opened = _open(run)
    from raynas.phases.evaluate import evaluate as evaluate_networks
    from raynas.phases.evaluate import networks_to_evaluate

    networks = networks_to_evaluate(opened, arch, progress)
    return evaluate_networks(opened, networks, again, progress=progress, resources=resources)


@typed
def export(
    run: RunLike,
    arch: Arch | str = "best",
    to: str | Path | None = None,
    *,
    inherited: bool = False,
    size: Positive | None = None,
    seed: Seed | None = None,
    onnx: bool | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> str:
    """Write a network as plain files: safetensors, a `torch.export` archive, ONNX, and how images are prepared.

    Args:
        run: the run directory.
        arch: an arch, or `best`, `reference`, the id of a scored subnet, an arch file.
        to: a folder on this machine; None for `export` in the run directory.
        inherited: take inherited weights, even if the arch was retrained.
        size: height and width of the retrained network's images in pixels; None for the run's.
        seed: seed of the retrained network; None for the lowest.
        onnx: write ONNX; None to write it if its packages are installed.
        resources: with replicas, a Ray task calibrates the batch norms of inherited weights, with the CPUs and GPUs of
            one replica; without, this process. None: a task on a cluster, else this process.
        progress: called with a line for each file.

    Returns:
        The folder.

    Raises:
        UserError: there is no such network, the folder holds other files, or ONNX is asked for and not installed.
    """
    opened = _open(run)
    found = _arch(opened, arch, progress)
    if inherited and seed is not None:
        raise UserError("inherited weights are not of a seed: leave out --inherited, or --seed")
    if inherited and size:
        raise UserError("inherited weights are for the run's image size: leave out --inherited, or --size")
    from raynas.phases.export import choose_network, export_into_run
    from raynas.phases.export import export as export_network
    from raynas.runs.networks import Network

    network = Network(found, "inherited")
    if not inherited:
        network = choose_network(opened.networks(), found, (size, size) if size else None, seed)
    progress(f"Exporting {network.name} ({network.path or 'weights inherited from the supernet'})")
    if to is None:
        return export_into_run(opened, network, onnx, progress, resources)
    export_network(opened, network, to, onnx, progress, resources)
    return os.fspath(to)


@typed
def report(run: RunLike, *, tensorboard: str | os.PathLike[str] | None = None) -> str:
    """Write one HTML page about a run, or about all trials of an experiment.

    The page of an ablation is there already, written after each trial.

    Args:
        run: the run directory.
        tensorboard: a folder on this machine for TensorBoard's event files of trainings and searches; None for none.

    Returns:
        The path of the page, or its URI without credentials.

    Raises:
        RunDirError: it is not a run directory.
    """
    opened = _open(run)
    if opened.exists("ablation.html"):  # written after each of its trials
        return f"{opened.name}/ablation.html"
    from raynas.outer.report_data import searched_spaces, trial_findings, tuning_findings
    from raynas.phases.report_data import traces
    from raynas.reports.page import write_report

    courses = traces(opened)
    if tensorboard is not None:
        from raynas.reports.tensorboard import write_events

        write_events(opened, Path(tensorboard), courses)
    return write_report(opened, courses, searched_spaces(opened), trial_findings(opened), tuning_findings(opened))


@typed
def status(run: RunLike) -> list[Work]:
    """Return how far each phase of a run is, from its tables alone; see `raynas watch`.

    Raises:
        RunDirError: it is not a run directory, or cannot be read.
    """
    from raynas.reports.status import status as read_status

    return read_status(_open(run))


# -- looking at data ---------------------------------------------------------------------------------------------------


@typed
def check(
    preset: PresetLike | None = None,
    data: DataLike | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    run_dir: RunLike | None = None,
    resources: Resources | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Check data, a preset and a cluster before hours are spent on them.

    The cluster is checked if there is one (`RAY_ADDRESS`) or a run directory or resources are given: versions, CPUs and
    GPUs, the connection between workers, data and run directory on every node, and memory. Nodes that are missing are
    asked for. If nothing of it failed, every image is read: what is there, what cannot be read, how it will be read.

    Args:
        preset: the preset to carry out; its space says how images are read.
        data: used in place of the preset's dataset.
        overrides: changes to the preset by dotted key; without a preset only those of `data`.
        run_dir: the run directory, which need not exist.
        resources: workers and replicas to find room for; None on a cluster for one and two, else for none.
        progress: called with lines of text.

    Returns:
        The checks of the cluster, each with its `mend` if it failed.

    Raises:
        UserError: the dataset is missing or unusable, or an image cannot be read.
    """
    cluster = os.environ.get("RAY_ADDRESS") not in (None, "", "local")
    anywhere = cluster or run_dir is not None or resources is not None
    if preset is not None:
        checked = _preset(preset, data, overrides, check_data=not anywhere)
        config = checked.data
    elif data is not None:
        checked, config = None, _data_alone(data, overrides or {})
    elif anywhere:
        checked = config = None
    else:
        raise UserError("say what to check: --data DIR, and the preset that it is for where there is one")
    if checked is not None and checked.space is None:  # it follows from a model, and says nothing about images
        checked = None
    findings: list[Finding] = []
    if anywhere:
        from raynas.phases.check import check_cluster, show

        asked = resources or (Resources() if cluster else Resources(workers=0, replicas=0))
        findings = check_cluster(checked, config, asked, None if run_dir is None else str(run_dir), progress)
        show(findings, progress)
    if (preset is not None or config is not None) and all(finding.mend is None for finding in findings):
        from raynas.phases.images import check_data

        check_data(config, checked, progress)
    return findings


# -- what a user gives, checked ----------------------------------------------------------------------------------------


def run_preset(run: Run, overrides: Mapping[str, Any] | None = None) -> Preset:
    """Return the preset of a run with changes by dotted key.

    Raises:
        UserError: the run has none yet, or a change does not fit.
    """
    from raynas.presets.preset import override

    return override(run.preset, overrides or {})


def _open(run: RunLike) -> Run:
    from raynas.runs.run import open_run

    return open_run(run)


def _arch(run: Run, arch: Arch | str, progress: Progress) -> Arch:
    from raynas.space import Arch

    return arch if isinstance(arch, Arch) else run.arch(arch, progress)


def _space(space: Space | str | os.PathLike[str] | None) -> Space | None:
    from raynas.space import Space, load_space

    return space if space is None or isinstance(space, Space) else load_space(space)


def _preset(
    preset: PresetLike, data: DataLike | None, overrides: Mapping[str, Any] | None, check_data: bool = True
) -> Preset:
    """Return a preset with other data and changes; `check_data`: the data must suit the preset's space."""
    from raynas.presets.preset import Preset, load_preset, override

    before = preset if isinstance(preset, Preset) else load_preset(os.fspath(preset))
    changes = dict(overrides or {})
    if data is not None:
        changes = {"data": _data_settings(data), **changes}
    after = override(before, changes)
    if check_data and data is not None:
        from raynas.phases.images import check_made_for

        check_made_for(before, after)
    return after


def _data_settings(data: DataLike) -> dict[str, Any]:
    if isinstance(data, str | os.PathLike):
        return {"name": os.fspath(data)}
    return dict(data) if isinstance(data, Mapping) else data.model_dump()


def _data_alone(data: DataLike, overrides: Mapping[str, Any]) -> DataConfig:
    from raynas.config import Document, validate
    from raynas.data.config import DataConfig

    if wrong := [key for key in overrides if not key.startswith("data.")]:
        raise UserError(f"--set {wrong[0]}: without a preset only values of data can be set, such as data.size=32")
    values = {**_data_settings(data), **{key.removeprefix("data."): value for key, value in overrides.items()}}
    return validate(DataConfig, Document({"data": values}, "override"), ("data",))


def _refuse_nested(run_dir: RunLike) -> None:
    """Raise UserError if a new run would lie in another one, whose files it would mix with."""
    from raynas.locations import is_uri
    from raynas.results.run_dir import MARKER, run_around

    given = str(run_dir)
    around = None if is_uri(given) else run_around(given)
    if around not in (None, Path(os.path.realpath(given))):
        raise UserError(f"{given} lies in the run directory {around} (it has a {MARKER}): give a folder elsewhere")
