"""Supernets: what the families share, elastic layers and weight sharing.

Importing this package does not import torch, because costs use its `terms` without networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raynas.space import Space, check_space
from raynas.space.families import family_module

if TYPE_CHECKING:
    from raynas.nets.supernet import Supernet

__all__ = ["build_supernet"]


def build_supernet(space: Space) -> Supernet:
    """Build the supernet of a space, initialised from torch's random stream.

    Raises:
        UserError: `space` is none.
    """
    check_space(space)
    supernet: Supernet = family_module(space.family, "model").SUPERNET(space)
    return supernet
