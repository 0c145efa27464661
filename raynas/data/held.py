"""Decoded images that memory holds or, where they are too many, that are decoded batch by batch in every pass."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from raynas.data.images import ImageSet, decode, decoded_bytes

log = logging.getLogger(__name__)

HELD = 0.3
"""Share of a machine's memory that decoded images may take in a process: as much as Ray's object store has of it."""

ANNOUNCED_FROM = 2**30  # bytes
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Streamed:
    """The pixels of a set of images as a tensor has them, but decoded anew whenever they are asked for.

    Args:
        threads: images decoded at once; by default one for each CPU of the machine.
    """

    device = torch.device("cpu")

    def __init__(self, images: ImageSet, threads: int | None = None):
        self._images, self._threads = images, threads

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, positions: Tensor) -> Tensor:
        """Return some images, uint8 [some, channels, height, width]."""
        return decode(self._images.take(positions.numpy()), self._threads)[0]

    def split(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, `size` at a time; the next ones are decoded meanwhile."""
        batches = torch.arange(len(self)).split(size)
        with ThreadPoolExecutor(1) as ahead:
            coming = ahead.submit(self.__getitem__, batches[0])
            for following in batches[1:]:
                batch, coming = coming.result(), ahead.submit(self.__getitem__, following)
                yield batch
            yield coming.result()


Pixels: TypeAlias = Tensor | Streamed
"""Images uint8 [n, channels, height, width] that are held, or decoded batch by batch."""


def held(images: ImageSet) -> Pixels:
    """Return the pixels of a set: held if they take at most `HELD` of this machine's memory, else streamed.

    Raises:
        UserError: an image cannot be read; the message names it.
    """
    room = int(HELD * machine_memory())
    if has_room(images, room):
        if decoded_bytes(images) > ANNOUNCED_FROM and not images.is_decoded:
            log.warning(f"decoding {len(images):,} images once, into {decoded_bytes(images) / 1e9:.1f} GB of memory")
        return decode(images)[0]
    tell_streamed(images, room, "memory")
    return Streamed(images)


def has_room(images: ImageSet, room: int) -> bool:
    """Return True if a decoded set takes at most `room` bytes, or is in memory already."""
    return images.is_decoded or decoded_bytes(images) <= room


def tell_streamed(images: ImageSet, room: int, where: str) -> None:
    """Tell that images are decoded batch by batch, and why."""
    log.warning(
        f"{len(images):,} decoded images take {decoded_bytes(images) / 1e9:.1f} GB, and {where} has {room / 1e9:.1f} "
        "GB for them: they are decoded batch by batch, anew for each network"
    )


def machine_memory() -> int:
    """Return this machine's memory in bytes, or what its container may have of it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in map(Path, _LIMITS):
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            memory = min(memory, int(text))
    return memory
