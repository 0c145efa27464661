"""The torch device that a user names."""

from __future__ import annotations

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
