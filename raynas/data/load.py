"""From a `DataConfig` to the images of a training run, or to the test images: two functions with nothing in common.

Training, scoring and search call `load_data`; what it returns holds no test image. `load_test` is for evaluating
finished networks.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

from raynas.data import embedded
from raynas.data.config import DataConfig, crop_pct_for
from raynas.data.images import Geometry, ImageSet, PixelSource, decode, decoded_bytes
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut
from raynas.errors import UserError

OWN_STATISTICS_UP_TO = (64, 256 * 2**20)  # shorter side in pixels, decoded bytes: beyond it, ImageNet's mean and std


@dataclass(frozen=True)
class Data:
    """The images that training, scoring and search may see.

    Attributes:
        config: as given.
        class_names: in the order of the labels.
        train, search: disjoint sets, cut by `config.search_fraction` and `config.seed`, stratified.
    """

    config: DataConfig
    class_names: tuple[str, ...]
    train: ImageSet
    search: ImageSet

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of decoded images."""
        return self.train.geometry.size

    @property
    def channels(self) -> int:
        return self.train.geometry.channels

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]: over train for small sets of small images, else ImageNet's."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of pixels in [0, 1]; see `mean`."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        side, limit = OWN_STATISTICS_UP_TO
        small = min(self.size) <= side and decoded_bytes(self.train) <= limit
        if not small and self.channels == 3:
            return IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
        if not small and self.channels == 1:
            return (sum(IMAGENET_DEFAULT_MEAN) / 3,), (sum(IMAGENET_DEFAULT_STD) / 3,)
        channels = decode(self.train)[0].transpose(0, 1).flatten(1).double() / 255
        std = channels.std(1, correction=0)
        std[std == 0] = 1.0  # a constant channel stays constant
        return tuple(channels.mean(1).tolist()), tuple(std.tolist())

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of content, split and geometry."""
        parts = [self.train.fingerprint, self.search.fingerprint, *self.class_names]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def images(self, which: str = "train") -> ImageSet:
        """The set to train on: `train`, or `train+search` for retraining after the search.

        Raises:
            UserError: another name.
        """
        if which == "train":
            return self.train
        if which != "train+search":
            raise UserError(f"train_on: {which!r} is neither 'train' nor 'train+search'")
        return ImageSet(
            self.train.source,
            np.concatenate([self.train.indices, self.search.indices]),
            np.concatenate([self.train.labels, self.search.labels]),
            self.train.geometry,
        )


def load_data(config: DataConfig | str) -> Data:
    """The training and search images of a dataset, without its test images.

    Raises:
        UserError: the dataset is missing or unusable; one line says why and what to do.
    """
    config = _config(config)
    images, class_names = _pool(config, test=False)
    kept, off = cut(images.labels, config.search_fraction, config.seed, class_names, "search")
    return Data(config, class_names, images.take(kept), images.take(off))


def load_test(config: DataConfig | str) -> ImageSet:
    """The test images, for evaluating finished networks and nothing else.

    Raises:
        UserError: as `load_data`.
    """
    return _pool(_config(config), test=True)[0]


def _config(config: DataConfig | str | Any) -> DataConfig:
    return config if isinstance(config, DataConfig) else DataConfig.model_validate(config)


def _pool(config: DataConfig, test: bool) -> tuple[ImageSet, tuple[str, ...]]:
    """All images outside the test split, or all inside it; and the class names."""
    pixels, labels = embedded.LOADERS[config.name]()
    class_names = tuple(str(k) for k in range(int(labels.max()) + 1))
    chosen = cut(labels, TEST_FRACTION, TEST_SEED, class_names, "test")[1 if test else 0]
    size = (pixels.shape[2], pixels.shape[3])
    geometry = Geometry(size, pixels.shape[1], crop_pct_for(config, size), config.interpolation)
    # The other images are left behind here: nothing reachable from the set holds them.
    source = PixelSource(torch.from_numpy(pixels[chosen]), config.name)
    return ImageSet(source, np.arange(len(chosen)), labels[chosen], geometry), class_names
