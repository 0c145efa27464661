"""Loading of a dataset: its training and search images, or its test images.

Training, scoring and search call `load_data`, whose result holds no test image. `load_test` is for the evaluation of
finished networks.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from raynas.data import embedded
from raynas.data.canvas import DIGITS
from raynas.data.clutter import made_splits
from raynas.data.config import EMBEDDED, PAPERS_CROP_FROM, DataConfig, crop_pct_for
from raynas.data.files import list_files
from raynas.data.folder import read_folder
from raynas.data.images import Geometry, ImageSet, PixelSource, decode, decoded_bytes
from raynas.data.look import Findings, SeeAll, look, see_here
from raynas.data.parquet import read_parquet
from raynas.data.pixels import IMAGENET, Normalisation
from raynas.data.pool import Pool, Source, spread
from raynas.data.reading import AS_STORED, Reading, channels_of, size_of
from raynas.data.split import TEST_FRACTION, TEST_SEED, cut
from raynas.data.torch_dataset import TorchSource, read_torch_dataset
from raynas.errors import UserError
from raynas.locations import hide_secrets, is_uri
from raynas.progress.reporter import Progress, silent
from raynas.text import nearest

log = logging.getLogger(__name__)

SMALL = (64, 256 * 2**20)  # shorter side in pixels, decoded bytes: up to there a dataset gets its own mean and std
DEFAULT_SIZE = (224, 224)


@dataclass(frozen=True)
class Data:
    """The images that training, scoring and search may see.

    Attributes:
        class_names: class names in the order of labels.
        train, search: disjoint sets, split class by class by `config.seed`.
        normalised_as: the training images that `normalisation` is computed from; None for `train`.
    """

    config: DataConfig
    class_names: tuple[str, ...]
    train: ImageSet
    search: ImageSet
    normalised_as: ImageSet | None = None

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
        """Mean of each channel; see `normalisation`."""
        return self.normalisation.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel; see `normalisation`."""
        return self.normalisation.std

    @cached_property
    def normalisation(self) -> Normalisation:
        """Mean and deviation of the settings, else of the training images if they are few and small, or ImageNet's."""
        if self.config.mean is not None and self.config.std is not None:
            return Normalisation(self.config.mean, self.config.std)
        images = self.normalised_as or self.train
        small = _is_small(images)
        if not small and self.channels == 3:
            return IMAGENET
        if not small and self.channels == 1:
            return Normalisation((sum(IMAGENET.mean) / 3,), (sum(IMAGENET.std) / 3,))
        channels = images.decoded[0].transpose(0, 1).flatten(1).double() / 255
        std = channels.std(1, correction=0)
        std[std == 0] = 1.0  # a constant channel stays constant
        return Normalisation(tuple(channels.mean(1).tolist()), tuple(std.tolist()))

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of content, split and geometry."""
        parts = [self.train.fingerprint, self.search.fingerprint, *self.class_names]
        if self.normalised_as is not None:
            parts.append(self.normalised_as.fingerprint)
        if self.config.mean is not None:
            parts.append(f"{self.config.mean} {self.config.std}")
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def config_at(self, size: tuple[int, int]) -> DataConfig:
        """Return the settings of the same images at another size, with the same crop."""
        return self.config.model_copy(update={"size": size, "crop_pct": self.train.geometry.crop_pct})

    def resized(self, size: tuple[int, int]) -> Data:
        """Return the same images and split at another size, decoded anew, with the normalisation of this size.

        A network trained at this size expects this normalisation, and means of small images change with their size.
        """
        if size == self.size:
            return self
        return replace(load_data(self.config_at(size)), normalised_as=self.normalised_as or self.train)

    def images(self, which: str = "train") -> ImageSet:
        """Return the set to train on: `train`, or `train+search` for retraining after the search.

        Raises:
            UserError: another name.
        """
        if which == "train":
            return self.train
        if which != "train+search":
            raise UserError(f"train_on: {which!r} is neither 'train' nor 'train+search'")
        return replace(
            self.train,
            indices=np.concatenate([self.train.indices, self.search.indices]),
            labels=np.concatenate([self.train.labels, self.search.labels]),
        )


def load_data(config: DataConfig | str) -> Data:
    """Load the training and search images of a dataset, without its test images.

    Raises:
        UserError: the dataset is missing or unusable; one line says why and what to do.
    """
    config = without_unreadable(_config(config))
    images, class_names = _images(config, test=False)
    kept, off = _search_cut(config, images.labels, class_names)
    return Data(config, class_names, images.take(kept), images.take(off))


def load_test(config: DataConfig | str) -> ImageSet:
    """Load the test images, for evaluating finished networks only.

    Raises:
        UserError: as `load_data`.
    """
    return _images(without_unreadable(_config(config)), test=True)[0]


def look_at(config: DataConfig, progress: Progress = silent, see_all: SeeAll = see_here) -> Findings:
    """Read every image of a dataset, in all splits, and report sizes, modes and faults.

    Args:
        see_all: reads the images of a split.

    Raises:
        UserError: the dataset is missing, or none at all.
    """
    config = config.model_copy(update={"skip": () if config.skip == "unreadable" else config.skip})
    train, test, _ = _read(config)
    return look([pool for pool in (train, test) if pool is not None], reading_of(config), progress, see_all)


def without_unreadable(config: DataConfig) -> DataConfig:
    """Return the settings with the names of unreadable images in place of `skip: unreadable`.

    Raises:
        UserError: as `look_at`.
    """
    if config.skip != "unreadable":
        return config
    return config.model_copy(update={"skip": tuple(look_at(config).unreadable)})


def reading_of(config: DataConfig) -> Reading:
    """Conversion of every image of a dataset before it is resized; images that are pixels already stay as they are."""
    return AS_STORED if config.name in EMBEDDED else Reading(config.exif != "ignored", config.pixel_range)


def count_splits(config: DataConfig) -> tuple[dict[str, int], dict[str, int]]:
    """Count the images of the splits `train`, `search` and `test`, and of each class in its order over all splits.

    Raises:
        UserError: as `load_data`.
    """
    config = without_unreadable(config)
    pool, test, class_names = _read(config)
    labels, test_labels = pool.labels, None if test is None else test.labels
    if test_labels is None:
        kept, off = cut(labels, TEST_FRACTION, TEST_SEED, class_names, "test")
        labels, test_labels = labels[kept], labels[off]
    kept, off = _search_cut(config, labels, class_names)
    counts = np.bincount(np.concatenate([labels, test_labels]), minlength=len(class_names)).tolist()
    splits = {"train": len(kept), "search": len(off), "test": len(test_labels)}
    return splits, dict(zip(class_names, counts, strict=True))


def sample_shapes(config: DataConfig) -> list[tuple[int, int, int]]:
    """Return (height, width, channels) of up to 16 readable images, spread over those outside the test split.

    Raises:
        UserError: the dataset is missing, or none at all.
    """
    pool, reading = _read(config)[0], reading_of(config)
    found = []
    for index in spread(len(pool.labels)).tolist():
        try:
            image = reading.placed(pool.source.image(index))
        except UserError:
            continue  # told with all others that cannot be read
        found.append((*size_of(image), channels_of(image)))
    return found


def _search_cut(config: DataConfig, labels: np.ndarray, class_names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    return cut(labels, config.search_fraction, config.seed, class_names, "search", config.search_per_class)


def _config(config: DataConfig | str | Any) -> DataConfig:
    return config if isinstance(config, DataConfig) else DataConfig.model_validate(config)


def _images(config: DataConfig, test: bool) -> tuple[ImageSet, tuple[str, ...]]:
    """Return the images outside the test split, or those in it, and the class names."""
    pool, test_pool, class_names = _read(config)
    if test_pool is None:
        kept, off = cut(pool.labels, TEST_FRACTION, TEST_SEED, class_names, "test")
        # Each part gets a source of its own: nothing that training sees leads to a test image.
        pool, test_pool = pool.keep(kept), pool.keep(off) if test else None
    reading = reading_of(config)
    geometry = _geometry(config, pool.source, len(pool.labels), reading)
    if test:
        assert test_pool is not None
        pool = test_pool
    images = ImageSet(pool.source, np.arange(len(pool.labels)), pool.labels, geometry, reading)
    if isinstance(pool.source, TorchSource) and _is_small(images):
        # Somebody's own code is run once, here, where its mistakes are told before anything is trained.
        images = replace(images, source=PixelSource(decode(images)[0], config.name, cropped=True), reading=AS_STORED)
    return images, class_names


def _read(config: DataConfig) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return images for training, separate test images if there are any, and class names, without skipped images."""
    train, test, class_names = _read_all(config)
    return _kept(train, config), None if test is None else _kept(test, config), class_names


def _kept(pool: Pool, config: DataConfig) -> Pool:
    skipped = {*config.skip}
    if not skipped:
        return pool
    kept = [index for index in range(len(pool.labels)) if pool.source.name(index) not in skipped]
    if not kept:
        raise UserError(f"data: {hide_secrets(config.name)}: no image of a split can be read")
    return pool.keep(np.array(kept))


def _read_all(config: DataConfig) -> tuple[Pool, Pool | None, tuple[str, ...]]:
    """Return images for training, separate test images if there are any, and class names."""
    name = config.name
    if name in embedded.LOADERS:
        pixels, labels = embedded.LOADERS[name]()
        return Pool(PixelSource(torch.from_numpy(pixels), name), labels), None, DIGITS
    if config.clutter is not None:
        train, test = (
            Pool(PixelSource(torch.from_numpy(pixels), f"{name}, {split}"), labels)
            for split, (pixels, labels) in made_splits(config.clutter).items()
        )
        return train, test, DIGITS
    if not is_uri(name) and not os.path.exists(name):
        if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
            return read_torch_dataset(name, config.pixel_range)
        if os.sep in name or name.startswith(".") or os.path.splitext(name)[1]:
            raise UserError(f"data: {name}: no such file or folder")
        hint = nearest(name, EMBEDDED)
        raise UserError(f"data: {name!r} is neither a dataset of ours{hint}, nor a file, a folder or 'module:function'")
    listing = list_files(name)
    if any(
        path.endswith(".parquet") or (not path and name.partition("?")[0].endswith(".parquet"))
        for path in listing.paths
    ):
        return read_parquet(listing, config)
    if listing.paths == ("",):
        raise UserError(f"data: {hide_secrets(name)} is neither a folder nor a .parquet file")
    return read_folder(listing, config)


def _geometry(config: DataConfig, source: Source, count: int, reading: Reading) -> Geometry:
    """Return size and channels: the configured ones, else those of a sample of images, if equal and small."""
    size, channels = config.size, config.channels
    sample = []
    if not isinstance(size, tuple) or not isinstance(channels, int):
        sample = [reading.placed(source.image(k)) for k in spread(count).tolist()]
    if not isinstance(size, tuple):
        sizes = {size_of(image) for image in sample}
        if size == "own" and len(sizes) > 1:
            some = " and ".join(f"{height} x {width}" for height, width in sorted(sizes)[:2])
            raise UserError(f"data.size: the images have no one size of their own ({some}): give a size, such as 224")
        own = sizes.pop() if len(sizes) == 1 else DEFAULT_SIZE
        size = own if size == "own" or max(own) < PAPERS_CROP_FROM else DEFAULT_SIZE
    if not isinstance(channels, int):
        channels = max(channels_of(image) for image in sample)
    if config.mean is not None and len(config.mean) != channels:
        raise UserError(f"data.mean and data.std have {len(config.mean)} value(s), the images {channels} channel(s)")
    return Geometry(size, channels, crop_pct_for(config, size), config.interpolation)


def _is_small(images: ImageSet) -> bool:
    side, limit = SMALL
    return min(images.geometry.size) <= side and decoded_bytes(images) <= limit
