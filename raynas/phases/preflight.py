"""Everything that a preset's phases would refuse after training, refused before it."""

from __future__ import annotations

import numpy as np

from raynas.data.load import Data, load_data
from raynas.errors import UserError, reason
from raynas.phases.teachers import load_teachers
from raynas.presets.preset import Preset
from raynas.progress.reporter import Progress, silent
from raynas.search.build import build_search
from raynas.search.config import TIMED, SearchConfig
from raynas.space import Arch, Space, load_arch
from raynas.training.preflight import check_calibration, check_recipe, check_trainable
from raynas.training.teachers import Teachers


def check_training(preset: Preset, space: Space, data: Data, workers: int) -> Teachers | None:
    """Refuse a training that cannot be carried out, and return its teachers, loaded.

    Args:
        space: with the data's image size, channels and classes.

    Raises:
        UserError: plan, recipe, teachers and calibration do not fit each other, the space, the data or the number of
            workers.
    """
    check_trainable(space, data, preset.plan, preset.recipe, max(workers, 1))
    check_calibration(space, data, preset.calibration)
    return load_teachers(preset.recipe, data)


def check_later(preset: Preset, space: Space, progress: Progress = silent) -> None:
    """Tell what is wrong with the search, the retraining or the reference before a long training, not after it.

    What needs a device is left out: limits on latency and throughput are checked when they have been timed.

    Args:
        space: with the image size, channels and classes of the data.
        progress: gets a line if a search of the user's own cannot be made here. It need not: it may be at home on
            another machine, or read what training leaves, and training does not depend on it.

    Raises:
        InfeasibleError: nothing in the space meets the search's constraints.
        UserError: any of them is wrong.
    """
    retrain = preset.retrain
    for recipe in (preset.retrain_recipe, *([preset.finetune_recipe] if retrain.finetune else [])):
        recipe.micro_batch(workers=1)
        check_recipe(space.fix(space.largest()), recipe)
        if recipe.teachers not in (None, preset.recipe.teachers) and preset.data is not None:
            load_teachers(recipe, load_data(preset.data))
    if preset.reference is not None:  # it is trained from scratch, whatever the winner starts from
        recipe = preset.recipe if retrain.start == "inherited" else preset.retrain_recipe
        recipe.micro_batch(workers=1)
        try:
            check_recipe(reference_shape(preset.reference, space)[1], recipe)
        except UserError as error:
            raise type(error)(f"reference {preset.reference}: {error}") from error
    if retrain.finetune is not None and space.with_input(size=retrain.finetune.size) == space:
        raise UserError("retrain.finetune.size is the size of the images already: give another, or no finetune")
    try:
        _make_search(preset.search, space)
    except Exception as error:
        if ":" in preset.search.name:
            progress(f"search {preset.search.name!r} cannot be made here, and will be needed later: {reason(error)}")
        elif isinstance(error, UserError):
            raise type(error)(f"search: {error}") from error
        else:
            raise


def _make_search(config: SearchConfig, space: Space) -> None:
    untimed = {name: bounds for name, bounds in config.constraints.items() if name not in TIMED}
    costs = {} if config.latency is None else {name: lambda codes: np.zeros(len(codes)) for name in TIMED}
    build_search(config.model_copy(update={"constraints": untimed}), space, costs=costs)


def reference_shape(name: str, space: Space) -> tuple[Arch, Space]:
    """A hand-designed arch, and its space for the images and classes of another one.

    Raises:
        UserError: there is no such arch, or it cannot take such images.
    """
    shape = load_arch(name)
    return shape, shape.space.with_input(size=space.input_size, channels=space.channels, classes=space.classes)
