"""The place of a phase whose caller names none, and the threads of this process that it gets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raynas.cluster.connection import on_cluster
from raynas.cluster.resources import Resources
from raynas.errors import UserError


def default_resources(here: bool = True) -> Resources:
    """Return one worker and one replica on a cluster, whose head does no computing; else what this machine has.

    Args:
        here: True if this process does the work unless there is a cluster, with its threads of torch and its GPU; False
            if a local Ray does.
    """
    if here and not on_cluster():
        return Resources(0, 0, cpus=torch.get_num_threads(), gpus=int(torch.cuda.is_available()))
    return Resources(1, 1)


def device_here(resources: Resources) -> str:
    """Return the device of work in this process.

    Raises:
        UserError: it is to be a GPU, and there is none.
    """
    if resources.gpus and not torch.cuda.is_available():
        raise UserError(
            "torch finds no GPU here: leave out --gpu (gpus), or give workers or replicas of a cluster that has some"
        )
    return "cuda" if resources.gpus else "cpu"


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's threads in the block, as in Ray's workers and tasks, since results depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
