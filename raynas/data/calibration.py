"""Images for batch-norm calibration: drawn once, kept in memory, the same for every subnet."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, islice

from torch import Tensor

from raynas.data.augment import AugmentConfig
from raynas.data.config import CalibrationConfig
from raynas.data.load import Data
from raynas.data.loader import TrainLoader

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Calibration:
    """Images for batch-norm calibration, which are drawn where they are used.

    Attributes:
        config: settings of the draw.
        draw: draws the batches; it can be pickled.
    """

    config: CalibrationConfig
    draw: Callable[[], Tensor]

    @cached_property
    def batches(self) -> Tensor:
        """Normalised images, float32 [batches, batch, channels, height, width], drawn when they are first asked for."""
        return self.draw()


def calibration_bytes(config: CalibrationConfig, channels: int, size: tuple[int, int]) -> int:
    """Return the size of the drawn images of a size (height, width) in bytes."""
    return 4 * config.images * channels * math.prod(size)


def calibration_batches(data: Data, augment: AugmentConfig, config: CalibrationConfig) -> Tensor:
    """Return augmented and normalised training images, float32 [batches, batch size, channels, height, width].

    Raises:
        UserError: an image cannot be read.
    """
    loader = TrainLoader(data, augment, batch_size=config.batch_size, seed=config.seed, workers=0)
    if loader.shortage is not None:
        log.warning(f"calibration: {loader.shortage}")
    epochs = chain.from_iterable(loader.epoch(epoch) for epoch in count())
    drawn, wanted = (images for images, _ in epochs), config.images // config.batch_size
    first = next(drawn)
    batches = first.new_empty(wanted, *first.shape)  # a stack of a list would have them twice in memory
    for place, images in enumerate(islice(chain([first], drawn), wanted)):
        batches[place] = images
    return batches
