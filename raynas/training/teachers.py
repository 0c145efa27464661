"""External teachers: trained networks whose predictions are targets.

Teachers get the students' images, mixed and augmented, and resized and normalised for each teacher. If images are not
random, predictions are computed once and kept: batch by batch in the order of the training set, so that they are the
same after a resume and with any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.data import Data, TrainLoader
from raynas.errors import ConfigError, UserError
from raynas.nets.weights import weights_fingerprint
from raynas.networks import ARCH_FILE, Network, find_arch, load_weights, read_arch, read_space
from raynas.results import RunDir
from raynas.timm_weights import load_timm
from raynas.training.context import LocalContext
from raynas.training.teacher_config import TeacherConfig, TeachersConfig

if TYPE_CHECKING:
    from raynas.training.recipe import Recipe

CACHED_UP_TO = 2**30
"""Bytes of all predictions above which they are computed again for every batch."""

CACHE_BATCH = 256
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey, as in Pillow (ITU-R 601)."""

Statistics = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Teacher:
    """A frozen teacher network.

    Attributes:
        statistics: per-channel mean and deviation of pixels in [0, 1] that normalise its images.
        size: (height, width) of its images.
    """

    name: str
    network: nn.Module
    statistics: Statistics
    size: tuple[int, int]

    def logits(self, images: Tensor, statistics: Statistics) -> Tensor:
        """Return logits [batch, classes] of images [batch, channels, height, width] normalised by given statistics."""
        if images.shape[1] != len(self.statistics[0]) or statistics != self.statistics:
            mean, std = (_per_channel(values, images) for values in statistics)
            mine = [_per_channel(values, images) for values in self.statistics]
            images = (_channels(images * std + mean, len(self.statistics[0])) - mine[0]) / mine[1]
        if tuple(images.shape[2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bicubic", align_corners=False, antialias=True)
        return self.network(images)


class Teachers:
    """All teachers of a recipe.

    Args:
        config: the teachers' settings.
        data: the training data, which sets the normalisation of images.
        device: the teachers' device.

    Raises:
        UserError: a teacher cannot be loaded, or has other classes.
    """

    def __init__(self, config: TeachersConfig, data: Data, device: torch.device):
        self.config = config
        self.statistics: Statistics = (data.mean, data.std)
        self.teachers = [load_teacher(one, data) for one in config.models]
        for teacher in self.teachers:
            teacher.network.to(device)
        self._table: Tensor | None = None  # [training images, classes], if predictions are kept

    @property
    def fingerprints(self) -> list[str]:
        """The fingerprint of each teacher's weights."""
        return [weights_fingerprint(teacher.network.state_dict()) for teacher in self.teachers]

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return their mean prediction [batch, classes] for normalised images [batch, channels, height, width]."""
        return soft_targets([one.logits(images, self.statistics) for one in self.teachers], self.config.sharpen)

    def blend(self, images: Tensor, targets: Tensor, indices: Tensor) -> Tensor:
        """Blend the teachers' predictions into the images' targets; patches keep their labels.

        Args:
            images: [batch, channels, height, width], mixed.
            targets: [batch, classes], or [batch, 1 + patches, classes] with the image first.
            indices: int64 [batch] on the CPU, the images' indices in the training set.
        """
        answers = self.probabilities(images) if self._table is None else self._table[indices.to(self._table.device)]
        if targets.ndim == 2:
            return torch.lerp(targets, answers, self.config.weight)
        return torch.cat([torch.lerp(targets[:, 0], answers, self.config.weight)[:, None], targets[:, 1:]], dim=1)

    def remember(
        self,
        recipe: Recipe,
        loader: TrainLoader,
        context: LocalContext,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Compute all predictions once, if images are the same in every epoch and the predictions fit in memory.

        Ranks share the work; every rank gets all predictions.
        """
        images, classes = len(loader.images), loader.data.classes
        if changes_images(recipe) or 4 * images * classes > CACHED_UP_TO:
            return
        if context.rank == 0:
            context.event({"kind": "message", "text": f"  asking the teachers about {images:,} images, once for all"})
        table = torch.zeros(images, classes, device=context.device)
        for indices, (pictures, _) in loader.in_order(CACHE_BATCH):
            with autocast():
                table[indices.to(table.device)] = self.probabilities(pictures.to(context.device))
        context.all_reduce(table)
        self._table = table


def load_teachers(recipe: Recipe, data: Data, context: LocalContext) -> Teachers | None:
    """Load the teachers of a recipe, on every rank; None if it has none.

    Raises:
        UserError: a teacher cannot be loaded, or ranks have different ones.
    """
    if recipe.teachers is None:
        return None
    teachers = Teachers(recipe.teachers, data, context.device)
    found = context.gather(teachers.fingerprints)
    if any(other != found[0] for other in found):
        raise UserError("the workers have teachers of different weights: give every node the same files")
    return teachers


def teacher_settings(recipe: Recipe, data: Data) -> dict[str, list[str]]:
    """Return the fingerprints of the teachers' weights, for the record of a training's settings.

    Raises:
        UserError: a teacher cannot be loaded.
    """
    if recipe.teachers is None:
        return {}
    return {"teachers": Teachers(recipe.teachers, data, torch.device("cpu")).fingerprints}


def changes_images(recipe: Recipe) -> bool:
    """Return True if images, or the images mixed into them, may change from epoch to epoch."""
    mixing = recipe.token_labels is not None and recipe.token_labels.mixing != "none"
    return recipe.augment.random or recipe.mixes or mixing


def soft_targets(logits: Sequence[Tensor], sharpen: float) -> Tensor:
    """Return the teachers' mean softmax of sharpened logits, float32 (or wider) [batch, classes]."""
    answers = [F.softmax(sharpen * one.to(torch.promote_types(one.dtype, torch.float32)), dim=1) for one in logits]
    return torch.stack(answers).mean(0)


def load_teacher(config: TeacherConfig, data: Data) -> Teacher:
    """Load a teacher, frozen, on the CPU, and test it on an image.

    Args:
        config: the teacher's settings.
        data: the training data, with the teacher's classes.

    Raises:
        UserError: it cannot be loaded, has other classes, or cannot take its images.
    """
    teacher = _of_timm(config, data) if config.timm is not None else _of_run(config, data)
    teacher.network.eval().requires_grad_(False)
    example = torch.zeros(1, data.channels, *data.size)
    try:
        with torch.no_grad():
            classes = teacher.logits(example, (data.mean, data.std)).shape[-1]
    except (RuntimeError, AssertionError, ValueError) as error:
        raise UserError(
            f"teacher {teacher.name} cannot take images of {teacher.size[0]} x {teacher.size[1]} pixels: "
            f"{str(error).splitlines()[0]}"
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
    statistics = tuple(_fitted(about[name], channels, config.timm) for name in ("mean", "std"))
    return Teacher(config.timm, network, (statistics[0], statistics[1]), size)


def _fitted(values: Sequence[float], channels: int, name: str) -> tuple[float, ...]:
    """Return timm's statistics of colour images, or their mean for grey ones (as in our default statistics)."""
    if channels not in (1, len(values)):
        raise UserError(f"teacher {name}: no normalisation is known for images of {channels} channels")
    return tuple(values) if channels == len(values) else (sum(values) / len(values),)


def _of_run(config: TeacherConfig, data: Data) -> Teacher:
    from raynas.data import load_data
    from raynas.data.config import stored_config

    assert config.run is not None
    run = RunDir(config.run)
    folder = config.network if config.network.startswith("networks/") else None
    if folder is not None:
        arch = read_arch(run, f"{folder}/{ARCH_FILE}")
    else:
        arch = read_space(run).largest() if config.network == "largest" else find_arch(run, config.network)
    network = load_weights(run, Network(arch, "inherited", path=folder))
    theirs = stored_config(run.read_yaml("preset.yaml", "data"))
    images = data if theirs == data.config else load_data(theirs)
    if images.class_names != data.class_names:
        raise ConfigError(f"teacher {config.name} knows other classes than {data.name} has (or in another order)")
    return Teacher(config.name, network, (images.mean, images.std), config.size or network.space.input_size)


def _per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=like.dtype).view(-1, 1, 1)


def _channels(pixels: Tensor, channels: int) -> Tensor:
    """Convert pixels [batch, channels, height, width] to grey or colours."""
    if pixels.shape[1] == channels:
        return pixels
    if pixels.shape[1] == 1:
        return pixels.expand(-1, channels, -1, -1)
    if channels == 1 and pixels.shape[1] == 3:
        return (pixels * _per_channel(LUMA, pixels)).sum(1, keepdim=True)
    raise UserError(f"a teacher of {channels} channels cannot be shown images of {pixels.shape[1]}")
