"""Datasets: named by one string, split once, read by every worker from where they lie.

What travels to the workers of a cluster is the `DataConfig`; each worker reads the images itself by name, path or URI.
Importing this package stays light: torch is imported with the first name that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.data.augment import AugmentConfig
    from raynas.data.calibration import calibration_batches
    from raynas.data.config import CalibrationConfig, DataConfig
    from raynas.data.images import ImageSet, decode
    from raynas.data.load import Data, load_data, load_test
    from raynas.data.loader import TrainLoader

_PUBLIC = {
    "AugmentConfig": "raynas.data.augment",
    "CalibrationConfig": "raynas.data.config",
    "Data": "raynas.data.load",
    "DataConfig": "raynas.data.config",
    "ImageSet": "raynas.data.images",
    "TrainLoader": "raynas.data.loader",
    "calibration_batches": "raynas.data.calibration",
    "decode": "raynas.data.images",
    "load_data": "raynas.data.load",
    "load_test": "raynas.data.load",
    "normalise": "raynas.data.pixels",
}

__all__ = [
    "AugmentConfig",
    "CalibrationConfig",
    "Data",
    "DataConfig",
    "ImageSet",
    "TrainLoader",
    "calibration_batches",
    "decode",
    "load_data",
    "load_test",
    "normalise",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'raynas.data' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
