"""A piece of work away from the driver, as one Ray task, with its results as they come."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from raynas.cluster.growth import WAIT_S, check_this_machine, describe_shortage, room_for
from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.progress.reporter import Activity
from raynas.text import duration

ResultT = TypeVar("ResultT")

LOST = 3  # nodes that may be lost on the way
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks


def run_elsewhere(
    work: Callable[..., Iterator[ResultT]], *arguments: Any, resources: Resources, activity: Activity
) -> Generator[ResultT, None, None]:
    """Yield what a generator function yields in a Ray task on any node; Ray must be connected.

    If the task's node is lost, another task begins anew, and what it yields a second time is left out, so the function
    must yield the same again.

    Args:
        resources: CPUs, also of torch, and GPUs of one replica, which the task gets.
        activity: shows what the task waits for.

    Raises:
        UserError: the task raised it, or the resources did not come.
    """
    import ray

    needed = resources.of(1)
    check_this_machine(needed, "this needs", "use fewer")
    options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus, "max_retries": LOST}
    # On any node, even if this process is in a placement group, as a trial of Ray Tune is.
    task = ray.remote(_with_threads).options(num_returns="streaming", scheduling_strategy="DEFAULT", **options)
    results = task.remote(work, *arguments)
    since, begun = time.monotonic(), False
    try:
        while True:
            if not ray.wait([results], timeout=LOOK_S, fetch_local=False)[0]:
                # Once it runs, others may lack something; it does only if its node was lost and no other has room.
                lack = None if begun and room_for(needed) else describe_shortage(needed)
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
    yield from work(*arguments)


def assigned_device() -> str:
    """Return the device of this Ray task; Ray hides no GPUs from those that asked for none."""
    import ray

    return "cuda" if ray.get_gpu_ids() else "cpu"
