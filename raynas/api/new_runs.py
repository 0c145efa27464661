"""Public functions that make a run: its supernet, or all that follows as well."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raynas.api.given import DataLike, PresetLike, RunLike, check_place, chosen_preset, chosen_space, loading, typed
from raynas.cluster.resources import Resources
from raynas.config import Positive
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent

if TYPE_CHECKING:
    from raynas.phases.pipeline import PipelineResult
    from raynas.runs.run import Run
    from raynas.space import Space


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
        resources: the Ray Train workers, or threads and GPU of this process. If no number of workers is given, one
            worker trains on a cluster, else this process, without Ray, to the same weights.
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
    with loading(progress):
        from raynas.phases.preflight import preflight
        from raynas.phases.train import train as train_supernet

    checked = chosen_preset(preset, data, overrides)
    check_place(run_dir, checked.data)
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
    with loading(progress):
        from raynas.phases.import_ import TRANSFER, import_supernet, preset_of, transfer

    checked = chosen_preset(preset or preset_of(system), data, overrides, check_data=False)
    check_place(run_dir, checked.data)
    if system == TRANSFER:
        if space is not None:
            raise UserError("the space of a trained network follows from it: leave the space out")
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
        resources: workers that train the supernet and each network, and replicas that score subnets; None for two
            replicas, and for one worker on a cluster. If no number of workers is given, this process trains elsewhere,
            but several networks get a worker each. With 0 workers and 0 replicas Ray is not started.
        progress: called with lines of text.

    Raises:
        UserError: settings or data are wrong, the budget is impossible, or the run directory is busy or began with
            other settings.
    """
    with loading(progress):
        from raynas.phases.pipeline import pipeline as run_pipeline

    checked = chosen_preset(preset, data, overrides)
    check_place(run_dir, checked.data)
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
        resources: workers that train the supernet and each network, and replicas that score subnets; None for two
            replicas, and for one worker on a cluster. If no number of workers is given, this process trains elsewhere,
            but several networks get a worker each. With 0 workers and 0 replicas Ray is not started.
        progress: called with lines of text.

    Raises:
        InfeasibleError: no network in the space meets the limits.
        RunDirError: the run directory is in use, or began with another model or other settings.
        UserError: the model cannot be read, the images have another number of channels, or settings are wrong.
    """
    with loading(progress):
        from raynas.phases.adapt import adapt as adapt_model

    checked = chosen_preset(preset, data, overrides, check_data=False)
    check_place(run_dir, checked.data)
    return adapt_model(model, checked, run_dir, resources or Resources(), weights, chosen_space(space), progress)


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
            Without any data every second block may be left out, since their importance is measured on images.
        overrides: changes to the preset by dotted key; those of `adapt.elastic` say what is elastic.
        preset: settings of all phases.
        weights: a file with a timm model's weights, instead of those that timm downloads.
        progress: called with lines of text.

    Raises:
        UserError: the model cannot be read, or the data do not fit it.
    """
    with loading(progress):
        from raynas.phases.adapt import derive

    return derive(model, chosen_preset(preset, data, overrides, check_data=False), weights, progress)
