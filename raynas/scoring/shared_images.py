"""Decoded images in Ray's object store, in parts that every node with replicas holds once.

A large set is decoded on the cluster's nodes, since the driver may run on a small head. What a node's store has no room
for is decoded by the replicas, batch by batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np
import ray
from ray import ObjectRef
from ray.exceptions import RayTaskError
from torch import Tensor

from raynas.cluster.connection import is_local
from raynas.cluster.growth import describe_shortage
from raynas.cluster.nodes import living_nodes
from raynas.data.calibration import Calibration
from raynas.data.held import has_room, tell_streamed
from raynas.data.images import ImageSet, decode, decoded_bytes
from raynas.errors import UserError
from raynas.scoring.shared_weights import Arrays, checksums
from raynas.text import duration

log = logging.getLogger(__name__)

HERE_UP_TO = 2**29  # bytes of a set that is decoded in this process
PART_BYTES = 2**29
TELL_S = 30.0

Part: TypeAlias = tuple["ObjectRef[Arrays]", "ObjectRef[dict[str, int]]"]
"""Some consecutive images, `pixels` uint8 [some, channels, height, width], and their checksums.

Of a calibration `calibration` float32 [batches, batch, channels, height, width].
"""


def share(images: ImageSet, batch_size: int, at_once: int, limit_s: float, beside: int = 0) -> list[Part] | None:
    """Decode images into the object store, in parts of whole batches.

    Args:
        batch_size: images of one forward pass.
        at_once: parts that are decoded at the same time, each by a task of one CPU.
        limit_s: longest wait for the next decoded part.
        beside: bytes that a node's store holds beside the images.

    Returns:
        The parts; None if the store of a node has no room for all.

    Raises:
        UserError: an image cannot be read, or no part was decoded in time.
    """
    if not _fits_stores(images, beside):
        return None
    if images.is_decoded or decoded_bytes(images) <= HERE_UP_TO:
        here = {"pixels": decode(images)[0].numpy()}
        return [(ray.put(here), ray.put(checksums(here)))]
    size = batch_size * max(1, PART_BYTES * len(images) // decoded_bytes(images) // batch_size)
    source = ray.put(images)
    waiting = list(range(0, len(images), size))
    parts: dict[int, Part] = {}
    began = told = time.monotonic()
    running: dict[ObjectRef, int] = {}
    while waiting or running:
        if not _fits_stores(images, beside):  # a smaller node has come
            for ref in running:
                ray.cancel(ref)
            return None
        while waiting and len(running) < at_once:
            first = waiting.pop(0)
            parts[first] = cast(Part, _decode_part.remote(source, first, size))
            running[parts[first][1]] = first
        done, _ = ray.wait(list(running), timeout=TELL_S)
        for ref in done:
            _wait(ref)
            del running[ref]
            began = time.monotonic()
        now = time.monotonic()
        if now - began > limit_s:
            raise UserError(
                f"no search images were decoded in {duration(limit_s)}: no node has a free CPU, or the data is too slow"
            )
        if now - told > TELL_S:
            told = now
            decoded = size * (len(parts) - len(running))
            log.warning(f"decoding search images: {decoded:,} of {len(images):,}{_lack()}")
    return [parts[first] for first in sorted(parts)]


def share_calibration(calibration: Calibration, limit_s: float) -> Part:
    """Draw the images of a calibration into the object store: on a cluster by a task, since the head may be small.

    Args:
        limit_s: longest wait for the task.

    Raises:
        UserError: an image cannot be read, or they were not drawn in time.
    """
    if is_local():
        here = {"calibration": calibration.batches.numpy()}
        return ray.put(here), ray.put(checksums(here))
    part = cast(Part, _draw.remote(calibration.draw))
    began = time.monotonic()
    while not ray.wait([part[1]], timeout=min(TELL_S, limit_s))[0]:
        if time.monotonic() - began > limit_s:
            raise UserError(
                f"no calibration images were drawn in {duration(limit_s)}: no node has a free CPU, or data is slow"
            )
        log.warning(f"drawing {calibration.config.images:,} calibration images{_lack()}")
    _wait(part[1])
    return part


def _wait(ref: ObjectRef[Any]) -> None:
    """Wait for a task, and raise its UserError without Ray's around it."""
    try:
        ray.get(ref)
    except RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from error


def _lack() -> str:
    """Return the end of a line about tasks: what they wait for, if the cluster lacks it."""
    lack = describe_shortage({"CPU": 1})
    return "" if lack is None else f"; waits for {lack}"


@ray.remote(num_cpus=1, num_returns=2, scheduling_strategy="SPREAD")
def _draw(draw: Callable[[], Tensor]) -> tuple[Arrays, dict[str, int]]:
    arrays = {"calibration": draw().numpy()}
    return arrays, checksums(arrays)


@ray.remote(num_cpus=1, num_returns=2, scheduling_strategy="SPREAD")
def _decode_part(images: ImageSet, first: int, size: int) -> tuple[Arrays, dict[str, int]]:
    part = images.take(np.arange(first, min(first + size, len(images))))
    arrays = {"pixels": decode(part, threads=1)[0].numpy()}
    return arrays, checksums(arrays)


def _fits_stores(images: ImageSet, beside: int) -> bool:
    """Return True if a decoded set fits into the object store of every node that is up and has CPUs."""
    stores = [node.resources.get("object_store_memory", 0) for node in living_nodes() if node.resources.get("CPU")]
    if not stores or has_room(images, room := int(min(stores)) - beside):
        return True
    tell_streamed(images, max(room, 0), "a node's object store")
    log.warning(
        "more CPUs for each replica to decode with (--cpus), fewer images (--images, data.search_per_class) or a "
        "larger --object-store-memory make it faster"
    )
    return False
