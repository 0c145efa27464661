"""The device of a benchmark: its threads, its clock, and the line about a device that is not there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from raynas.nets.device import device_there
from raynas.nets.device import threads as torch_threads


@contextmanager
def on_device(name: str, threads: int) -> Iterator[torch.device]:
    """Make a torch device, which must be there, and set the number of torch's threads while the block runs."""
    device = device_there(name)
    with torch_threads(threads):
        yield device


def seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the duration of a call: on a CPU processor seconds of this process, on a GPU until its work is done."""
    began = _now(device)
    work()
    return _now(device) - began


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize(device)
    return time.perf_counter()
