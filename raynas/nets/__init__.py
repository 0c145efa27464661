"""Supernets: one folder per family, built on common elastic layers.

Importing this package does not import torch, because the families' cost modules are used without networks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raynas.errors import UserError
from raynas.space import Space

if TYPE_CHECKING:
    from raynas.nets.supernet import Supernet

__all__ = ["build_supernet"]


def build_supernet(space: Space) -> Supernet:
    """Build the supernet of a space, initialised from torch's random stream.

    Raises:
        UserError: the space's family has no supernet.
    """
    if space.family == "vit":
        from raynas.nets.vit.model import VitSupernet

        return VitSupernet(space)
    if space.family == "twins":
        from raynas.nets.twins.model import TwinsSupernet

        return TwinsSupernet(space)
    if space.family == "vit_res":
        from raynas.nets.vit_res.model import VitResSupernet

        return VitResSupernet(space)
    if space.family == "hybrid":
        from raynas.nets.hybrid.model import HybridSupernet

        return HybridSupernet(space)
    if space.family == "s3":
        from raynas.nets.s3.model import S3Supernet

        return S3Supernet(space)
    raise UserError(f"space {space.name}: no supernet for family {space.family!r}")
