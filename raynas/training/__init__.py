"""Training a supernet: what a step does (plan), with what settings (recipe), the loop, and the Ray Train job.

Importing this package is light; `train` pulls in torch and Ray when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.training.job import train
    from raynas.training.local import train_network
    from raynas.training.loop import train_loop
    from raynas.training.plan import Plan
    from raynas.training.recipe import Recipe

_PUBLIC = {
    "Plan": "raynas.training.plan",
    "Recipe": "raynas.training.recipe",
    "train": "raynas.training.job",
    "train_loop": "raynas.training.loop",
    "train_network": "raynas.training.local",
}

__all__ = ["Plan", "Recipe", "train", "train_loop", "train_network"]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'raynas.training' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
