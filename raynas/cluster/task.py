"""A piece of work away from the driver, as one Ray task, with its results as they come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from raynas.cluster.growth import WAIT_S, check_this_machine, describe_shortage
from raynas.cluster.losses import why_lost
from raynas.cluster.resources import Resources
from raynas.errors import UserError, reason
from raynas.progress.reporter import Activity
from raynas.text import duration

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)

LOST = 3  # tasks that may be lost on the way, with or without their nodes
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks


def run_elsewhere(
    work: Callable[..., Iterator[ResultT]], *arguments: Any, resources: Resources, activity: Activity
) -> Generator[ResultT, None, None]:
    """Yield what a generator function yields of its arguments and a device, in a Ray task on any node.

    Ray must be connected. If the task's process or node is lost, another task begins anew, and what it yields a second
    time is left out, so the function must yield the same again.

    Args:
        resources: CPUs, also of torch, and GPUs of one replica, which the task gets.
        activity: shows what the task waits for.

    Raises:
        UserError: the task raised it, or the resources did not come.
    """
    from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError

    check_this_machine(resources.of(1), "this needs", "use fewer")
    done = 0
    for attempt in range(LOST + 1):
        try:
            for place, result in enumerate(_one_task(work, *arguments, resources=resources, activity=activity)):
                if place >= done:
                    done += 1
                    yield result
            return
        except (NodeDiedError, ObjectLostError, OutOfMemoryError, WorkerCrashedError) as error:
            if attempt == LOST:
                raise
            log.warning("a task was lost (%s); another takes its place", why_lost(str(error)) or reason(error))


def _one_task(
    work: Callable[..., Iterator[ResultT]], *arguments: Any, resources: Resources, activity: Activity
) -> Generator[ResultT, None, None]:
    import ray

    needed = resources.of(1)
    # Begun anew by the caller and not by Ray, which does not say whether it runs again. On any node, even if this
    # process is in a placement group, as a trial of Ray Tune is.
    options = {"max_retries": 0, "scheduling_strategy": "DEFAULT"}
    options |= {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "num_returns": "streaming"}
    results = ray.remote(_with_threads).options(**options).remote(work, *arguments)
    since, begun = time.monotonic(), False
    try:
        while True:
            if not ray.wait([results], timeout=LOOK_S, fetch_local=False)[0]:
                lack = None if begun else describe_shortage(needed)  # once it runs, others may lack something
                activity.update(detail="" if lack is None else f"waits for {lack}; for {duration(WAIT_S)} at most")
                if lack is None:
                    since = time.monotonic()
                elif time.monotonic() - since > WAIT_S:
                    raise UserError(f"this needs {lack}; waited {duration(WAIT_S)}: use fewer, or a larger cluster")
                continue
            activity.update(detail="")
            result = ray.get(next(results))
            if begun:
                yield result
            begun = True
    except StopIteration:
        return
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, UserError) else error from None
    finally:
        ray.cancel(results)


def _with_threads(work: Callable[..., Iterator[ResultT]], *arguments: Any) -> Iterator[ResultT | None]:
    import ray
    import torch

    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    yield None  # says that it runs
    # Ray hides no GPUs from tasks that asked for none.
    yield from work(*arguments, "cuda" if ray.get_gpu_ids() else "cpu")
