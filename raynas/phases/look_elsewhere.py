"""Inspection of the images of a large dataset by Ray tasks on a cluster's nodes, since the head may be small."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from raynas.cluster.connection import on_cluster, ray_cluster
from raynas.cluster.growth import WAIT_S, describe_shortage
from raynas.cluster.resources import Resources
from raynas.data.look import AT_ONCE, SeeAll, Seen, see, see_here
from raynas.data.pool import Source
from raynas.data.reading import Reading
from raynas.errors import UserError
from raynas.progress.reporter import Activity
from raynas.text import duration

HERE_UP_TO = 20_000  # images that this process reads itself
Outcomes: TypeAlias = Sequence[Seen | UserError]
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks


def see_with(resources: Resources) -> SeeAll:
    """Return a reader of images: this process or, for many images on a cluster, tasks of one CPU each.

    Args:
        resources: the processes of the work to come; no more CPUs than these have are asked for.
    """

    def see_all(source: Source, count: int, reading: Reading, activity: Activity) -> Iterator[Outcomes]:
        if count <= HERE_UP_TO or not on_cluster():
            yield from see_here(source, count, reading, activity)
            return
        with ray_cluster():
            yield from _by_tasks(source, count, reading, activity, int(resources.together["CPU"]))

    return see_all


def _by_tasks(source: Source, count: int, reading: Reading, activity: Activity, at_once: int) -> Iterator[Outcomes]:
    import ray

    # On any node, even if this process is in a placement group, as a trial of Ray Tune is.
    task = ray.remote(_see_some).options(num_cpus=1, scheduling_strategy="SPREAD")
    there, running = ray.put(source), deque[ray.ObjectRef]()
    began = time.monotonic()
    parts = iter(range(0, count, AT_ONCE))
    while True:
        for first in parts:
            running.append(task.remote(there, first, min(first + AT_ONCE, count), reading))
            if len(running) == at_once:
                break
        if not running:
            return
        if not ray.wait([running[0]], timeout=LOOK_S)[0]:
            lack = describe_shortage({"CPU": 1})
            activity.update(detail="" if lack is None else f"waits for {lack}; for {duration(WAIT_S)} at most")
            if time.monotonic() - began > WAIT_S:
                raise UserError(f"no images were read in {duration(WAIT_S)}: no node has a free CPU, or data is slow")
            continue
        try:
            outcomes = ray.get(running.popleft())
        except ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, UserError) else error from error
        began = time.monotonic()
        activity.advance(len(outcomes), detail="")
        yield outcomes


def _see_some(source: Source, first: int, end: int, reading: Reading) -> list[Seen | UserError]:
    with ThreadPoolExecutor(4) as threads:  # a store is waited for
        see(source, first, reading)  # what is opened at the first use is opened once, not by every thread
        return list(threads.map(lambda index: see(source, index, reading), range(first, end)))
