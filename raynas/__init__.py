"""raynas finds the best vision transformer for a budget.

The names below are the public interface; each is imported when it is first used, so that `import raynas` stays light.
"""

from __future__ import annotations

import importlib
from typing import Any

from raynas import timm_models as _timm_models

_PUBLIC = {
    "load_space": "raynas.space",
    "load_arch": "raynas.space",
    "Space": "raynas.space",
    "Arch": "raynas.space",
    "cost": "raynas.costs",
    "build_supernet": "raynas.nets",
    "load_preset": "raynas.preset",
    "train": "raynas.training",
    "ScorePool": "raynas.scoring",
    "LocalScorer": "raynas.scoring",
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
    try:
        return importlib.import_module(f"raynas.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'raynas' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    return __all__


_timm_models.register_when_imported()  # `timm.create_model("raynas_vit", ...)` works after `import raynas`
