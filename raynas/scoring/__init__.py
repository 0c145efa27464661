"""Scores of subnets with inherited weights: in this process, or by frozen replicas in Ray actors."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.scoring.local import LocalScorer
    from raynas.scoring.pool import ScorePool

_PUBLIC = {"LocalScorer": "raynas.scoring.local", "ScorePool": "raynas.scoring.pool"}

__all__ = ["LocalScorer", "ScorePool"]


def __getattr__(name: str) -> Any:  # torch and ray are imported when they are used
    if name not in _PUBLIC:
        raise AttributeError(f"module 'raynas.scoring' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
