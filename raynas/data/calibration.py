"""Images for batch-norm calibration: drawn once, kept in memory, the same for every subnet."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import chain, count, islice

import torch
from torch import Tensor

from raynas.data.augment import AugmentConfig
from raynas.data.config import CalibrationConfig
from raynas.data.load import Data
from raynas.data.loader import TrainLoader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """Images for batch-norm calibration.

    Attributes:
        config: settings of the draw.
        batches: normalised images, float32 [batches, batch, channels, height, width].
    """

    config: CalibrationConfig
    batches: Tensor


def calibration_batches(data: Data, augment: AugmentConfig, config: CalibrationConfig) -> Tensor:
    """Return augmented and normalised training images, float32 [batches, batch size, channels, height, width].

    Raises:
        UserError: an image cannot be read.
    """
    loader = TrainLoader(data, augment, batch_size=config.batch_size, seed=config.seed, workers=0)
    if loader.shortage is not None:
        log.warning(f"calibration: {loader.shortage}")
    epochs = chain.from_iterable(loader.epoch(epoch) for epoch in count())
    return torch.stack([images for images, _ in islice(epochs, config.images // config.batch_size)])
