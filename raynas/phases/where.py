"""The place of a phase whose caller names none, and the threads of this process that it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from raynas.cluster.connection import on_cluster, ray_cluster
from raynas.cluster.resources import Resources
from raynas.cluster.task import run_elsewhere
from raynas.errors import UserError
from raynas.nets.device import threads
from raynas.progress.reporter import Activity, Progress, reporter

ResultT = TypeVar("ResultT")


def default_resources(here: bool = True) -> Resources:
    """Return one worker and one replica on a cluster, whose head does no computing; else what this machine has.

    Args:
        here: True if this process does the work unless there is a cluster, with its threads of torch and its GPU; False
            if a local Ray does.
    """
    if here and not on_cluster():
        return Resources(0, 0, cpus=torch.get_num_threads(), gpus=int(torch.cuda.is_available()))
    return Resources(1, 1)


def placed(resources: Resources, several: bool = False) -> Resources:
    """Return resources with their number of workers: if it is not said, 1 on a cluster, else 0.

    Args:
        several: True for trainings side by side, which get a worker each, on one machine, too.
    """
    if resources.workers is not None:
        return resources
    return replace(resources, workers=int(several or on_cluster()))


def for_short_work(resources: Resources) -> Resources:
    """Return the resources of work that is too short for a local Ray: a cluster's as given, else this process.

    Networks are still trained by one worker of a local Ray, several side by side, if workers were given; if nothing was
    said of workers, several networks are.
    """
    on_nodes = placed(resources)
    if (on_nodes.workers or on_nodes.replicas) and on_cluster():
        return on_nodes
    return replace(resources, workers=resources.workers and min(resources.fewest_workers, 1), replicas=0)


def compute(
    doing: str, work: Callable[..., ResultT], *arguments: Any, resources: Resources, progress: Progress
) -> ResultT:
    """Return what a function computes of its arguments and a device: in a Ray task if there are replicas, else here.

    Args:
        doing: what it does, as a heading of the progress of a task.
        work: a function of a module, since it travels; the device is its last argument.
        resources: those of one replica are the task's.
    """
    if not resources.replicas:
        with threads(resources.cpus):
            return work(*arguments, device_here(resources))
    with (
        reporter(progress).doing(doing) as activity,
        computing(_once, work, *arguments, resources=resources, progress=progress, activity=activity) as found,
    ):
        return next(found)


def _once(work: Callable[..., ResultT], *arguments: Any) -> Iterator[ResultT]:
    yield work(*arguments)


@contextmanager
def computing(
    work: Callable[..., Iterator[ResultT]],
    *arguments: Any,
    resources: Resources,
    progress: Progress,
    activity: Activity,
) -> Iterator[Iterator[ResultT]]:
    """Provide what a generator function yields of its arguments and a device, one after the other; see `compute`."""
    if not resources.replicas:
        with threads(resources.cpus):
            yield work(*arguments, device_here(resources))
        return
    found = run_elsewhere(work, *arguments, resources=resources, activity=activity)
    with ray_cluster(resources.cpus, progress), closing(found):
        yield found


def device_here(resources: Resources) -> str:
    """Return the device of work in this process; refuse a GPU where there is none."""
    if resources.gpus and not torch.cuda.is_available():
        raise UserError(
            "torch finds no GPU here: leave out --gpu (gpus), or give workers or replicas of a cluster that has some"
        )
    return "cuda" if resources.gpus else "cpu"
