"""The one check of a preset before anything is written: whatever any of its phases would refuse is refused here."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from raynas.cluster.connection import on_cluster
from raynas.cluster.resources import Resources
from raynas.data.load import Data, load_data
from raynas.errors import ConfigError, InfeasibleError, Mistakes, UserError, reason
from raynas.phases.images import (
    PIXELS,
    check_data,
    check_images,
    check_made_for,
    describe_few,
    describe_jitter,
    describe_reading,
    follow_images,
)
from raynas.phases.inputs import Estimate, estimate, load_inputs, space_of, with_known_skips
from raynas.phases.teachers import load_teachers
from raynas.phases.where import device_here, placed
from raynas.presets.preset import Preset, override
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.run import Run
from raynas.runs.settings import has_begun
from raynas.search.build import build_search
from raynas.search.config import TIMED, SearchConfig
from raynas.search.halving import check_rungs
from raynas.space import Arch, Space, load_arch
from raynas.training.preflight import check_calibration, check_recipe, check_trainable
from raynas.training.recipe import Recipe
from raynas.training.teachers import Teachers


@dataclass(frozen=True)
class Ready:
    """A checked preset, with the values that were loaded for the check.

    Attributes:
        preset: preset with image size, channels and skipped images of its data filled in.
        space: space with the image size, channels and classes of the data.
        teachers: teachers of the supernet; None if its recipe has none.
    """

    preset: Preset
    resources: Resources
    space: Space
    data: Data
    teachers: Teachers | None
    estimate: Estimate


def preflight(
    preset: Preset,
    resources: Resources,
    run_dir: Run | str | os.PathLike[str] | None = None,
    progress: Progress = silent,
    look: bool = True,
    retrained: bool = False,
    space: Space | None = None,
) -> Ready:
    """Refuse a preset that cannot be carried out, from its images to its retraining. Nothing is written.

    A run directory remembers the settings that it began with, so a mistake found later could not be corrected in it.

    Args:
        run_dir: the supernet's run directory, which need not exist. What a training that began there knows of its
            images is not looked for again.
        progress: called with lines of text about the images, and about what is needed later and is not here.
        look: read every image once, to list all that cannot be read.
        retrained: subnets are scored and the winner is retrained with the same resources afterwards, which must do for
            that, too.
        space: space to use instead of the preset's.

    Raises:
        ConfigError: preset, data and number of workers do not fit each other.
        InfeasibleError: nothing in the space meets the sampler's budget or the search's constraints.
        UserError: data, a teacher or a GPU is missing, or an image cannot be read.
    """
    recipe, training = preset.recipe, placed(resources)
    recipe.micro_batch(max(training.most_workers, 1))
    here = not training.workers or (retrained and not resources.replicas)
    if resources.gpus and (here or not on_cluster()):  # a local Ray has no other GPUs than this process
        device_here(resources)
    if recipe.amp == "fp16" and not resources.gpus:
        raise ConfigError("recipe.amp fp16 needs GPUs: train with --gpu (gpus), or set recipe.amp to none (or bf16)")
    begun = run_dir is not None and has_begun(run_dir, "train")
    if run_dir is not None and begun:
        preset = with_known_skips(preset, Run(run_dir))
    elif look:
        check_images(preset, resources, progress)
    with reporter(progress).doing("loading images"):
        space, data = load_inputs(preset, space)
    settled = preset.model_copy(update={"data": data.config})
    recipes = [recipe, *preset.retrain_recipes]
    lines = [*describe_reading(preset, data), *describe_few(len(data.search)), *describe_jitter(recipes, data.channels)]
    for line in [] if begun else lines:
        progress(line)
    teachers = check_settings(settled, space, data, training, progress, resources if retrained else None)
    return Ready(settled, resources, space, data, teachers, estimate(space, data, preset.plan, recipe))


def check_preset(preset: Preset, before: Preset | None, resources: Resources, progress: Progress) -> None:
    """Describe the images of a preset, and refuse settings that do not fit them; all mistakes are told together.

    Args:
        before: the preset with its own data, if others are given; None if not.

    Raises:
        UserError: as `check_data` and `check_settings`, or images would lose colour or size.
    """
    mistakes = Mistakes()
    if before is not None and (follow := follow_images(before, preset)) is not None:
        with mistakes.noted():
            check_made_for(before, preset)
        if PIXELS in follow.values():  # without a size nothing more can be said
            mistakes.tell()
        preset = override(preset, follow)
        progress(f"the rest is checked with {' '.join(f'{key}={value}' for key, value in follow.items())}")
    with mistakes.noted():
        data = check_data(None, preset, resources, progress)
        space = space_of(preset).with_input(size=data.size, channels=data.channels, classes=data.classes)
        settled = preset.model_copy(update={"data": data.config})
        check_settings(settled, space, data, Resources(workers=0, replicas=0), progress)
    mistakes.tell()


def check_settings(
    preset: Preset,
    space: Space,
    data: Data,
    training: Resources,
    progress: Progress = silent,
    retraining: Resources | None = None,
) -> Teachers | None:
    """Refuse settings that do not fit the images, the space or one another; all mistakes are told together.

    Args:
        space: space with the image size, channels and classes of the data.
        training: workers of the supernet's training.
        progress: see `check_later`.
        retraining: workers of the retraining, if they are known.

    Returns:
        The teachers of the supernet; None if its recipe has none.

    Raises:
        InfeasibleError: nothing in the space meets the sampler's budget or the search's constraints.
        UserError: any of them is wrong.
    """
    mistakes, teachers = Mistakes(), None
    with mistakes.noted():
        check_trainable(space, data, preset.plan, preset.recipe, max(training.most_workers, 1))
    with mistakes.noted():
        check_calibration(space, data, preset.calibration)
    with mistakes.noted():
        teachers = load_teachers(preset.recipe, data)
    with mistakes.noted():
        check_rungs(preset.search.rungs, preset.search.batch, len(data.search))
    with mistakes.noted():
        check_later(preset, space, progress, retraining)
    mistakes.tell()
    return teachers


def check_later(preset: Preset, space: Space, progress: Progress = silent, resources: Resources | None = None) -> None:
    """Refuse a wrong search, retraining or reference; all mistakes are told together.

    Limits on latency and throughput are left out: they are checked when subnets have been timed.

    Args:
        space: space with the image size, channels and classes of the data.
        progress: called with a line if a user's own search cannot be built here, which is no error: it may be installed
            on another machine only, or need files of the training.
        resources: workers of the retraining, if they are known.

    Raises:
        InfeasibleError: no arch of the space meets the search's constraints.
        UserError: any of them is wrong.
    """
    retrain, mistakes = preset.retrain, Mistakes()
    with mistakes.noted():  # the recipes have most values in common, and so their mistakes
        for recipe in preset.retrain_recipes:
            _check_workers(recipe, resources)
            check_recipe(space.fix(space.largest()), recipe)
            if recipe.teachers not in (None, preset.recipe.teachers) and preset.data is not None:
                load_teachers(recipe, load_data(preset.data))
        _check_reference(preset, space, resources)
    with mistakes.noted():
        if retrain.finetune is not None and space.with_input(size=retrain.finetune.size) == space:
            raise UserError("retrain.finetune.size is the size of the images already: give another, or no finetune")
    with mistakes.noted():
        _check_search(preset.search, space, progress)
    mistakes.tell()


def _check_reference(preset: Preset, space: Space, resources: Resources | None) -> None:
    if preset.reference is None:
        return
    # It is always trained from scratch.
    recipe = preset.recipe if preset.retrain.start == "inherited" else preset.retrain_recipe
    _check_workers(recipe, resources)
    try:
        check_recipe(reference_shape(preset.reference, space).space, recipe)
    except UserError as error:
        raise type(error)(f"reference {preset.reference}: {error}") from error


def _check_search(config: SearchConfig, space: Space, progress: Progress) -> None:
    untimed = {name: bounds for name, bounds in config.constraints.items() if name not in TIMED}
    costs = {} if config.latency is None else {name: lambda codes: np.zeros(len(codes)) for name in TIMED}
    try:
        build_search(config.model_copy(update={"constraints": untimed}), space, costs=costs)
    except Exception as error:
        if ":" in config.name:
            progress(f"search {config.name!r} cannot be made here, and will be needed later: {reason(error)}")
        elif isinstance(error, InfeasibleError):
            limits = " ".join(f"--set 'search.constraints.{name}=[null, N]'" for name in config.constraints)
            hint = f" (the preset's search.constraints say so; give other limits: {limits})" if limits else ""
            raise InfeasibleError(f"search: {error}{hint}") from error
        elif isinstance(error, UserError):
            raise type(error)(f"search: {error}") from error
        else:
            raise


def _check_workers(recipe: Recipe, resources: Resources | None) -> None:
    """Check that the workers of a retraining can deal its batches out, and have what its precision needs."""
    recipe.micro_batch(max(resources.most_workers, 1) if resources else 1)
    if resources is not None:
        try:
            recipe.check_device("cuda" if resources.gpus else "cpu")
        except ConfigError as error:
            raise ConfigError(f"retraining: {error}, or give --gpu (gpus)") from error


def reference_shape(name: str, space: Space) -> Arch:
    """Return a hand-designed arch for the images and classes of a space.

    Raises:
        UserError: there is no such arch, or it does not support such images.
    """
    shape = load_arch(name)
    own = shape.space.with_input(size=space.input_size, channels=space.channels, classes=space.classes)
    return own.arch(dict(shape))
