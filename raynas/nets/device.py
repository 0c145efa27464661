"""The device, the number of threads and the evaluation mode that torch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raynas.errors import UserError, first_line
from raynas.text import shown


def device_there(name: str | torch.device) -> torch.device:
    """Return a device that is there.

    Raises:
        UserError: there is no such device on this machine, or it is the name of none.
    """
    try:
        device = torch.empty(0, device=name).device
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise UserError(f"device {shown(name)}: {first_line(error)}") from error
    if device.type == "meta":
        raise UserError("device 'meta' computes nothing: give cpu, or cuda")
    return device


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Set torch's threads in the block, as in Ray's workers and tasks, since results depend on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def evaluating(network: torch.nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode in the block, and back in training mode after it if it was in that."""
    training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(training)
