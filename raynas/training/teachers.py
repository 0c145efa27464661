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

from raynas.data.calibration import Calibration
from raynas.data.load import Data
from raynas.data.loader import TrainLoader
from raynas.data.pixels import Normalisation
from raynas.errors import UserError
from raynas.nets.calibration import calibrate
from raynas.nets.supernet import Supernet
from raynas.nets.weights import weights_fingerprint
from raynas.training.context import Context, share_buffers
from raynas.training.teacher_config import TeachersConfig

if TYPE_CHECKING:
    from raynas.training.recipe import Recipe

CACHED_UP_TO = 2**30
"""Bytes of all predictions above which they are computed again for every batch."""

CACHE_BATCH = 256
LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey, as in Pillow (ITU-R 601)."""


@dataclass(frozen=True)
class Teacher:
    """A frozen teacher network.

    Attributes:
        normalisation: mean and deviation of its images' pixels.
        size: (height, width) of its images.
        calibration: images on which the batch norms of its network, a subnet with inherited weights, are calibrated
            when it joins a training; None if they need not be.
    """

    name: str
    network: nn.Module
    normalisation: Normalisation
    size: tuple[int, int]
    calibration: Calibration | None = None

    def logits(self, images: Tensor, normalisation: Normalisation) -> Tensor:
        """Return logits [batch, classes] of normalised images [batch, channels, height, width]."""
        own = self.normalisation
        if images.shape[1] != len(own.mean) or normalisation != own:
            mean, std, own_mean, own_std = (
                _per_channel(values, images) for values in (normalisation.mean, normalisation.std, own.mean, own.std)
            )
            images = (_channels(images * std + mean, len(own.mean)) - own_mean) / own_std
        if tuple(images.shape[2:]) != self.size:
            images = F.interpolate(images, self.size, mode="bicubic", align_corners=False, antialias=True)
        return self.network(images)


class Teachers:
    """All teachers of a recipe.

    Args:
        config: the teachers' settings.
        teachers: the networks, with the classes of `data`.
        data: the training data, which sets the normalisation of images.
    """

    def __init__(self, config: TeachersConfig, teachers: Sequence[Teacher], data: Data):
        self.config = config
        self.normalisation = data.normalisation
        self.teachers = teachers
        self.fingerprints = [_fingerprint(teacher) for teacher in teachers]
        self._table: Tensor | None = None  # [training images, classes], if predictions are kept
        self._calibrated = False

    def join(self, context: Context) -> None:
        """Move the teachers to the context's device, compare them over ranks, and calibrate their batch norms once.

        Rank 0 calibrates, and the others get its statistics.

        Raises:
            UserError: ranks have different teachers, or an image for the calibration cannot be read.
        """
        found = context.gather(self.fingerprints)
        if any(other != found[0] for other in found):
            raise UserError("the workers have teachers of different weights: give every node the same files")
        for teacher in self.teachers:
            teacher.network.to(context.device)
            if teacher.calibration is not None and not self._calibrated:
                _calibrate(teacher, context)
        self._calibrated = True

    def leave(self) -> None:
        """Move the teachers to the CPU, and forget the predictions that were kept."""
        for teacher in self.teachers:
            teacher.network.to("cpu")
        self._table = None

    @torch.no_grad()
    def probabilities(self, images: Tensor) -> Tensor:
        """Return their mean prediction [batch, classes] for normalised images [batch, channels, height, width].

        A hard prediction is 1 for the most probable class.
        """
        found = soft_targets([one.logits(images, self.normalisation) for one in self.teachers], self.config.sharpen)
        return F.one_hot(found.argmax(1), found.shape[1]).to(found.dtype) if self.config.hard else found

    def answers(self, images: Tensor, indices: Tensor) -> Tensor:
        """Return `probabilities`, or those that were kept.

        Args:
            images: [batch, channels, height, width], mixed.
            indices: int64 [batch] on the CPU, the images' indices in the training set.
        """
        return self.probabilities(images) if self._table is None else self._table[indices.to(self._table.device)]

    def blend(self, images: Tensor, targets: Tensor, indices: Tensor) -> Tensor:
        """Blend the teachers' predictions into the images' targets; patches keep their labels.

        Args:
            images, indices: as for `answers`.
            targets: [batch, classes], or [batch, 1 + patches, classes] with the image first.
        """
        answers = self.answers(images, indices)
        if targets.ndim == 2:
            return torch.lerp(targets, answers, self.config.weight)
        return torch.cat([torch.lerp(targets[:, 0], answers, self.config.weight)[:, None], targets[:, 1:]], dim=1)

    def remember(
        self,
        recipe: Recipe,
        loader: TrainLoader,
        context: Context,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Compute all predictions once, if images are the same in every epoch and the predictions fit in memory.

        Ranks share the work; every rank gets all predictions.
        """
        images, classes = len(loader.images), loader.data.classes
        if not predictions_bytes(recipe, images, classes):
            return
        if context.rank == 0:
            context.event({"kind": "message", "text": f"  asking the teachers about {images:,} images, once for all"})
        table = torch.zeros(images, classes, device=context.device)
        for indices, (pictures, _) in loader.in_order(CACHE_BATCH):
            with autocast():
                table[indices.to(table.device)] = self.probabilities(pictures.to(context.device))
        context.all_reduce(table)
        self._table = table


def _fingerprint(teacher: Teacher) -> str:
    """Return what tells teachers apart: their weights and, where batch norms are calibrated, the settings of that."""
    weights = weights_fingerprint(teacher.network.state_dict())
    if teacher.calibration is None:
        return weights
    config = teacher.calibration.config
    return f"{weights}, calibrated on {config.images} images by {config.batch_size}, seed {config.seed}"


def _calibrate(teacher: Teacher, context: Context) -> None:
    """Calibrate a teacher's batch norms on rank 0's device, and give every rank the statistics."""
    network, calibration = teacher.network, teacher.calibration
    assert isinstance(network, Supernet) and calibration is not None
    if context.rank == 0:
        context.event({"kind": "message", "text": f"  calibrating the batch norms of {teacher.name}"})
        batches = (images.to(context.device) for images in calibration.draw())
        (averages,) = calibrate(network, network.space.smallest(), batches).averages.values()
        network.load_state_dict(dict(averages), strict=False)
    share_buffers(context, network)


def predictions_bytes(recipe: Recipe, images: int, classes: int) -> int:
    """Return the size of all predictions if they are kept; 0 if they change with the images, or are too many."""
    size = 4 * images * classes
    return 0 if changes_images(recipe) or size > CACHED_UP_TO else size


def changes_images(recipe: Recipe) -> bool:
    """Return True if images, or the images mixed into them, may change from epoch to epoch."""
    mixing = recipe.token_labels is not None and recipe.token_labels.mixing != "none"
    return recipe.augment.random or recipe.mixes or mixing


def soft_targets(logits: Sequence[Tensor], sharpen: float) -> Tensor:
    """Return the teachers' mean softmax of sharpened logits, float32 (or wider) [batch, classes]."""
    answers = [F.softmax(sharpen * one.to(torch.promote_types(one.dtype, torch.float32)), dim=1) for one in logits]
    return torch.stack(answers).mean(0)


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
