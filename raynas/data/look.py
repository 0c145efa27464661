"""Inspection of every image of a dataset: sizes, modes, and images that cannot be read."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from PIL import Image

from raynas.data.pool import Pool, Source
from raynas.data.reading import RangeUnknown, Reading, channels_of, likely_range, orientation, size_of
from raynas.errors import UserError
from raynas.progress.reporter import Activity, Progress, reporter

AT_ONCE = 2048


@dataclass
class Findings:
    """Sizes, modes and faults of the images of a dataset.

    Attributes:
        sizes: number of readable images by (height, width), upright if they are read upright.
        modes: number of images by Pillow's mode, or of tensors.
        channels: number of images by channels: grey (1), in colour (3), or a tensor's number.
        turned: number of images that are not stored upright.
        unreadable: reasons why images cannot be read, by the image's name in the dataset.
        unranged: a line about images of more than 8 bits without a given range; None if there are none.
        flat: True if there are readable images and each has a single colour.
    """

    count: int = 0
    sizes: Counter[tuple[int, int]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    turned: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)
    unranged: str | None = None
    flat: bool = False


@dataclass(frozen=True)
class Seen:
    """A readable image."""

    size: tuple[int, int]
    mode: str
    channels: int
    turned: bool
    flat: bool


SeeAll = Callable[[Source, int, Reading, Activity], Iterator[Sequence["Seen | UserError"]]]
"""Function that reads so many images of a source and yields the outcomes in their order, some at a time."""

_KNOWN: dict[str, Findings] = {}
"""Findings in this process by dataset, since several phases ask and a large dataset takes minutes."""


def see_here(source: Source, count: int, reading: Reading, activity: Activity) -> Iterator[Sequence[Seen | UserError]]:
    """Read images on all CPUs of this machine; see `SeeAll`."""
    # Threads: Pillow decodes without Python's lock; more than CPUs, since a store is waited for.
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        see(source, 0, reading)  # what is opened at the first use is opened once, not by every thread
        for first in range(0, count, AT_ONCE):
            places = range(first, min(first + AT_ONCE, count))
            outcomes = []
            for outcome in threads.map(lambda index: see(source, index, reading), places):
                outcomes.append(outcome)
                activity.advance()
            yield outcomes


def look(pools: Sequence[Pool], reading: Reading, progress: Progress, see_all: SeeAll = see_here) -> Findings:
    """Read every image of some pools.

    Args:
        pools: images of all splits.
        reading: conversion of images when they are read.
        progress: called with lines of text.
        see_all: reads the images of a pool.
    """
    digest = hashlib.sha256(repr(reading).encode())
    try:
        for pool in pools:
            digest.update(pool.source.signature(np.arange(len(pool.labels))))
    except UserError:  # somebody's own dataset is told by items, one of which cannot be read
        return _look(pools, reading, progress, see_all)
    key = digest.hexdigest()
    if key not in _KNOWN:
        _KNOWN[key] = _look(pools, reading, progress, see_all)
    return _KNOWN[key]


def _look(pools: Sequence[Pool], reading: Reading, progress: Progress, see_all: SeeAll) -> Findings:
    found = Findings(count=sum(len(pool.labels) for pool in pools), flat=True)
    unranged: list[RangeUnknown] = []
    with reporter(progress).doing("looking at every image", found.count) as activity:
        for pool in pools:
            outcomes = chain.from_iterable(see_all(pool.source, len(pool.labels), reading, activity))
            for index, outcome in enumerate(outcomes):
                if isinstance(outcome, RangeUnknown):
                    unranged.append(outcome)
                elif isinstance(outcome, UserError):
                    found.unreadable[pool.source.name(index)] = str(outcome)
                else:
                    found.sizes[outcome.size] += 1
                    found.modes[outcome.mode] += 1
                    found.channels[outcome.channels] += 1
                    found.turned += outcome.turned
                    found.flat &= outcome.flat
    found.flat &= bool(found.sizes)
    if unranged:
        found.unranged = _one_line(unranged)
    return found


def see(source: Source, index: int, reading: Reading) -> Seen | UserError:
    """Read an image, and return what there is to tell of it, or the reason why it cannot be read."""
    try:
        image = source.image(index)
        if not isinstance(image, Image.Image):
            flat = bool((image == image.reshape(-1)[0]).all())
            return Seen(size_of(image), f"tensors of {image.shape[0]} channel(s)", image.shape[0], False, flat)
        channels = channels_of(image)
        read = reading.read(image, channels, source.where(index))
        assert isinstance(read, Image.Image)
        extremes = np.array(read.getextrema()).reshape(-1, 2)
        flat = bool((extremes[:, 0] == extremes[:, 1]).all())
        return Seen(size_of(read), image.mode, channels, orientation(image) != 1, flat)
    except UserError as error:
        return error


def _one_line(unranged: Sequence[RangeUnknown]) -> str:
    """Return a line about all images that need a range."""
    valued = [error for error in unranged if error.low is not None and error.high is not None]
    if not valued:
        return f"{len(unranged):,} image(s) such as {unranged[0]}"
    low, high = min(error.low or 0.0 for error in valued), max(error.high or 0.0 for error in valued)
    return (
        f"{len(unranged):,} image(s) have more than 8 bits a channel, with values from {low:g} to {high:g}: say which "
        f"values are black and white, such as --set 'data.pixel_range=[{likely_range(low, high)}]' "
        f"({str(valued[0]).partition(': values')[0]})"
    )
