"""Loading of external teachers: timm's models with weight files, and networks of runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raynas.data.load import Data, load_data
from raynas.data.pixels import Normalisation
from raynas.errors import ConfigError, UserError, first_line
from raynas.nets.timm_weights import load_timm
from raynas.runs.networks import Network
from raynas.runs.run import Run, open_run
from raynas.training.recipe import Recipe
from raynas.training.teacher_config import TeacherConfig
from raynas.training.teachers import Teacher, Teachers


def load_teachers(recipe: Recipe, data: Data, run: Run | None = None) -> Teachers | None:
    """Load the teachers of a recipe on the CPU; None if it has none.

    Args:
        data: the training data, with the teachers' classes.
        run: the run that is trained, which may hold the original model.

    Raises:
        UserError: a teacher cannot be loaded, or has other classes.
    """
    if recipe.teachers is None:
        return None
    return Teachers(recipe.teachers, [load_teacher(one, data, run) for one in recipe.teachers.models], data)


def teacher_settings(teachers: Teachers | None) -> dict[str, list[str]]:
    """Return the teachers' fingerprints, for the record of a training's settings."""
    return {} if teachers is None else {"teachers": teachers.fingerprints}


def load_teacher(config: TeacherConfig, data: Data, run: Run | None = None) -> Teacher:
    """Load a teacher, frozen, on the CPU, and test it on an image.

    Batch norms that have to be calibrated are so when it joins a training, see `Teachers.join`.

    Raises:
        UserError: it cannot be loaded, has other classes, or cannot take its images.
    """
    teacher = _of_timm(config, data) if config.timm is not None else _of_run(config, data, run)
    teacher.network.eval().requires_grad_(False)
    example = torch.zeros(1, data.channels, *data.size)
    try:
        with torch.no_grad():
            classes = teacher.logits(example, data.normalisation).shape[-1]
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"teacher {teacher.name} cannot take images of {teacher.size[0]} x {teacher.size[1]} pixels: "
            f"{first_line(error)}"
        ) from error
    if classes != data.classes:
        raise ConfigError(f"teacher {teacher.name} knows {classes} classes, {data.name} has {data.classes}")
    return teacher


def _of_timm(config: TeacherConfig, data: Data) -> Teacher:
    assert config.timm is not None
    options = dict(config.options)
    if config.weights is not None:
        options.setdefault("num_classes", data.classes)
    instead = f"{{timm: {config.timm}, weights: FILE}} among recipe.teachers.models"
    network = load_timm(config.timm, config.weights, options, instead=instead)
    about = getattr(network, "pretrained_cfg", None)
    if not about:
        raise UserError(f"teacher {config.timm}: timm does not say how its images are normalised; take it from its run")
    channels, own = int(options.get("in_chans", 3)), options.get("img_size", about["input_size"][1:])
    size = config.size or ((own, own) if isinstance(own, int) else tuple(own))
    mean, std = (_fitted(about[name], channels, config.timm) for name in ("mean", "std"))
    return Teacher(config.timm, network, Normalisation(mean, std), size)


def _fitted(values: Sequence[float], channels: int, name: str) -> tuple[float, ...]:
    """Return timm's values for colour images, or their mean for grey ones (as in our default normalisation)."""
    if channels not in (1, len(values)):
        raise UserError(f"teacher {name}: no normalisation is known for images of {channels} channels")
    return tuple(values) if channels == len(values) else (sum(values) / len(values),)


def _of_run(config: TeacherConfig, data: Data, trained: Run | None) -> Teacher:
    source = trained if config.is_original else config.run
    if source is None:
        raise ConfigError("teacher network: original is the model that raynas adapt begins with; give timm: or run:")
    run = open_run(source)
    supernet, largest = run.supernet(), config.network == "largest"
    named = Network(run.space.largest(), "inherited") if largest else run.network(config.network)
    network = run.model(named, supernet, calibrated=False)
    theirs = run.data_config
    images = data if theirs == data.config else load_data(theirs)
    if images.class_names != data.class_names:
        raise ConfigError(f"teacher {config.name} knows other classes than {data.name} has (or in another order)")
    size, calibration = config.size or network.space.input_size, supernet.calibration if named.path is None else None
    return Teacher(config.name, network, images.normalisation, size, calibration)
