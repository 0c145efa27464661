"""Training batches whose order and augmentation are functions of (seed, epoch, position) alone.

The global random streams of the training process are left as they are, and no generator has a state to save: an epoch
entered in the middle continues exactly as one run from its start, with any number of loader workers.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from raynas.data.augment import AugmentConfig
from raynas.data.images import ImageSet, decoded_bytes
from raynas.data.load import Data
from raynas.data.pixels import normalise
from raynas.data.streams import generator, global_streams_kept, mix, seed_global_streams
from raynas.errors import UserError
from raynas.locations import is_uri

DECODED_UP_TO = 2**30  # bytes: larger sets are decoded image by image in every epoch

Batch = tuple[Tensor, Tensor]


def epoch_order(images: int, seed: int, epoch: int, repeats: int = 1) -> np.ndarray:
    """Return the order of an epoch's images over all ranks, int64 [images].

    Repeated images are neighbours, so that interleaved ranks get one copy each. The epoch keeps its length, with
    `images / repeats` different images, as with DeiT's sampler and timm's RepeatAugSampler (which have no seed, and no
    entry in the middle of an epoch).
    """
    return torch.randperm(images, generator=generator(seed, epoch)).numpy().repeat(repeats)[:images]


def images_of_step(images: int, batch_size: int, world_size: int = 1, together: int = 1) -> int:
    """Return the number of images in one step: `batch_size`, or a smaller set's as far as it can be dealt.

    Args:
        images: training images.
        batch_size: images of a step, if there are so many.
        world_size: number of ranks.
        together: number of images that are dealt to one rank together.

    Raises:
        UserError: some rank would get none.
    """
    size = min(batch_size, images) // together * together
    if size < world_size * together:
        pieces, instead = ("", "") if together == 1 else (f" in pieces of {together}", ", or a smaller accumulate")
        raise UserError(
            f"{images} training images cannot be shared by {world_size} workers{pieces}; use fewer workers{instead}"
        )
    return size


def loader_bytes(images: ImageSet, augment: AugmentConfig) -> int:
    """Return the bytes of the decoded images that a loader holds; 0 if it decodes them image by image."""
    size = decoded_bytes(images)
    return 0 if augment.needs_images or size > DECODED_UP_TO else size


class TrainLoader:
    """Batches of augmented training images for one rank; `len()` is the number of steps in an epoch.

    Step k of an epoch takes the next `batch_size` images of `epoch_order`; rank r gets every world_size-th of them from
    the r-th on. So a step's images and their augmentation do not depend on the number of ranks. Where it does not
    divide the step, the first ranks get `together` more images than the others. Images that do not fill a last step are
    left out (others in each epoch), so that no image is used twice. A set smaller than one step makes one smaller step
    an epoch: see `shortage`.

    Sets of up to 1 GiB of pixels are decoded once and augmented in memory, if the augmentation works on pixels. Others
    are decoded image by image in `workers` processes, which stay alive between epochs.

    Args:
        augment: augmentation of single images; by default none.
        batch_size: images of one step, over all ranks.
        seed: non-negative seed of order and augmentation.
        rank, world_size: this rank, and the number of ranks.
        together: number of images by which ranks may differ; a step is a multiple of it.
        train_on: `train` or `train+search`.
        workers: number of loader processes, 0 to decode in this one; by default one less than this node's CPUs for each
            rank, at most 16. Batches do not depend on it.
        pin_memory: True for batches in page-locked memory, for asynchronous copies to a GPU.

    Attributes:
        batch_size: images of one step, over all ranks.
        share: this rank's part of them, between 0 and 1.
        shortage: what to tell if a step cannot be as large as it was to be; None if it is.

    Raises:
        UserError: there are fewer images than ranks, or the augmentation is unknown.
    """

    def __init__(
        self,
        data: Data,
        augment: AugmentConfig | None = None,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        together: int = 1,
        train_on: str = "train",
        workers: int | None = None,
        pin_memory: bool = False,
    ):
        self.data = data
        self.images = data.images(train_on)
        self.augment = augment or AugmentConfig()
        self.seed, self.rank, self.world_size, self.together = seed, rank, world_size, together
        count = len(self.images)
        self.batch_size = images_of_step(count, batch_size, world_size, together)
        self.steps = count // self.batch_size
        self.share = len(self._dealt(0)) / self.batch_size
        self.shortage: str | None = None
        if self.batch_size < batch_size:
            self.shortage = (
                f"{count} training images are fewer than one step of {batch_size}: an epoch is one step of "
                f"{self.batch_size}"
            )
        self._loader: DataLoader | None = None
        if not loader_bytes(self.images, self.augment):
            self._sampler = _Steps()
            self._loader = _image_loader(self, self._sampler, _spare_cpus() if workers is None else workers, pin_memory)
        else:
            self._pixels, self._labels = self.images.decoded

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield an epoch's batches from step `skip` on: float32 [batch, channels, height, width], labels int64 [batch].

        Skipped images are not decoded, and later batches are the same as without skipping.

        Raises:
            UserError: an image cannot be read; the message names it.
        """
        order = epoch_order(len(self.images), self.seed, epoch, self.augment.repeats)
        return self._batches(epoch, order, self._positions(skip))

    def indices(self, epoch: int, skip: int = 0) -> Iterator[Tensor]:
        """Yield the training-set indices of each of these batches, int64 [batch]."""
        order = torch.from_numpy(epoch_order(len(self.images), self.seed, epoch, self.augment.repeats))
        return (order[positions] for positions in self._positions(skip))

    def in_order(self, size: int) -> Iterator[tuple[Tensor, Batch]]:
        """Yield every image once, in batches of `size` consecutive ones dealt to ranks, if augmentation is not random.

        The batches do not depend on the number of ranks; the last may be smaller.

        Returns:
            Training-set indices int64 [batch], and the batch.

        Raises:
            UserError: as `epoch`.
        """
        everything = np.arange(len(self.images))
        pieces = [
            everything[first : first + size]
            for first in range(self.rank * size, len(everything), self.world_size * size)
        ]
        return zip(map(torch.from_numpy, pieces), self._batches(0, everything, pieces), strict=True)

    def _positions(self, skip: int) -> list[np.ndarray]:
        """Yield the positions in the epoch's order of this rank's images of each step, from step `skip` on."""
        return [self._dealt(step * self.batch_size) for step in range(skip, self.steps)]

    def _dealt(self, first: int) -> np.ndarray:
        """Return the positions of this rank's images of the step that begins with the `first` position."""
        even = first + self.batch_size // (self.world_size * self.together) * self.world_size * self.together
        left = np.arange(even, first + self.batch_size).reshape(-1, self.together)
        return np.concatenate([np.arange(first + self.rank, even, self.world_size), *left[self.rank : self.rank + 1]])

    def _batches(self, epoch: int, order: np.ndarray, steps: list[np.ndarray]) -> Iterator[Batch]:
        return self._gather(epoch, order, steps) if self._loader is None else self._decode(epoch, order, steps)

    def _gather(self, epoch: int, order: np.ndarray, steps: list[np.ndarray]) -> Iterator[Batch]:
        from raynas.data.transforms import BatchAugmentation  # slow import

        augmentation = BatchAugmentation(self.augment, len(order), self.seed, epoch)
        for positions in steps:
            chosen = torch.from_numpy(order[positions])
            pixels = augmentation.move(self._pixels[chosen], positions)
            yield augmentation.erase(normalise(pixels, self.data.normalisation), positions), self._labels[chosen]

    def _decode(self, epoch: int, order: np.ndarray, steps: list[np.ndarray]) -> Iterator[Batch]:
        assert self._loader is not None
        self._sampler.steps = [[(epoch, int(p), int(order[p])) for p in positions] for positions in steps]
        for batch in self._loader:
            if isinstance(batch, UserError):
                raise UserError(str(batch))  # a new one: `batch` would hold this frame, and so the workers, in a cycle
            yield batch


Key = tuple[int, int, int]  # epoch, position in its order, image


class _AugmentedImages(Dataset):
    """Augmented images by key; errors are returned, because worker processes would add a traceback to them."""

    def __init__(self, images: ImageSet, transform: Callable[[Any], Tensor], seed: int):
        self.images, self.transform, self.seed = images, transform, seed

    def __getitem__(self, key: Key) -> tuple[Tensor, int] | UserError:
        epoch, position, index = key
        try:
            image, label = self.images.read(index), int(self.images.labels[index])
        except UserError as error:
            return error
        with global_streams_kept():
            seed_global_streams(mix(self.seed, epoch, 2, position))
            return self.transform(image), label


class _Steps(Sampler):
    """The keys of the current epoch's steps, sent to workers with each request."""

    def __init__(self) -> None:
        self.steps: list[list[Key]] = []

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


def _collate(items: list[tuple[Tensor, int] | UserError]) -> Batch | UserError:
    error = next((item for item in items if isinstance(item, UserError)), None)
    if error is not None:
        return error
    images, labels = zip(*items, strict=True)  # type: ignore[arg-type]
    return torch.stack(images), torch.tensor(labels)


def _spare_cpus() -> int:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # as torch's and Ray's launchers set it
    return max(0, min((os.cpu_count() or 1) // ranks - 1, 16))


def _image_loader(owner: TrainLoader, sampler: _Steps, workers: int, pin_memory: bool) -> DataLoader:
    from raynas.data.transforms import image_transform  # slow import

    data = owner.data
    transform = image_transform(owner.augment, owner.images.geometry, data.mean, data.std)
    context = None  # the platform's usual way
    if workers and is_uri(data.name):  # a client of an object store does not survive a fork: those workers start afresh
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])  # torch is then imported once for all workers
    return DataLoader(
        _AugmentedImages(owner.images, transform, owner.seed),
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=pin_memory,
        multiprocessing_context=context,
        persistent_workers=workers > 0,
        generator=torch.Generator(),  # else it would draw from the global stream at every epoch
    )
