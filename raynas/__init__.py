"""raynas finds the best vision transformer for a budget.

The names below are the public interface; each is imported when it is first used, so that `import raynas` stays light.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

_PUBLIC = {
    "load_space": "raynas.space",
    "load_arch": "raynas.space",
    "Space": "raynas.space",
    "Arch": "raynas.space",
    "cost": "raynas.costs",
    "build_supernet": "raynas.nets",
    "load_preset": "raynas.presets.preset",
    "train": "raynas.phases.train",
    "ScorePool": "raynas.scoring.pool",
    "LocalScorer": "raynas.scoring.local",
    "RandomSearch": "raynas.search",
    "Evolution": "raynas.search",
    "NSGA2": "raynas.search",
    "ParetoEvolution": "raynas.search",
    "PredictorEvolution": "raynas.search",
    "RunDir": "raynas.results",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    # An import that fails inside a module is shown as what it is.
    if not name.startswith("__") and importlib.util.find_spec(f"raynas.{name}") is not None:
        return importlib.import_module(f"raynas.{name}")
    raise AttributeError(f"module 'raynas' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
