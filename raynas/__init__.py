"""raynas finds the best vision transformer for a budget.

The names below are the public interface; each is imported when it is first used, so that `import raynas` stays light.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raynas.api.existing_runs import evaluate as evaluate
    from raynas.api.existing_runs import export as export
    from raynas.api.existing_runs import rank as rank
    from raynas.api.existing_runs import retrain as retrain
    from raynas.api.existing_runs import search_run as search_run
    from raynas.api.experiments import ablate as ablate
    from raynas.api.experiments import evolve_space as evolve_space
    from raynas.api.experiments import tune as tune
    from raynas.api.looks import check as check
    from raynas.api.looks import compare as compare
    from raynas.api.looks import list_runs as list_runs
    from raynas.api.looks import report as report
    from raynas.api.looks import status as status
    from raynas.api.new_runs import adapt as adapt
    from raynas.api.new_runs import elastic_space as elastic_space
    from raynas.api.new_runs import import_model as import_model
    from raynas.api.new_runs import pipeline as pipeline
    from raynas.api.new_runs import train as train
    from raynas.cluster.resources import Resources as Resources
    from raynas.costs import cost as cost
    from raynas.nets import build_supernet as build_supernet
    from raynas.nets.attention_maps import attention_maps as attention_maps
    from raynas.presets.preset import load_preset as load_preset
    from raynas.proxies.scorer import ProxyScorer as ProxyScorer
    from raynas.runs.run import Run as Run
    from raynas.runs.run import open_run as open_run
    from raynas.scoring.local import LocalScorer as LocalScorer
    from raynas.scoring.pool import ScorePool as ScorePool
    from raynas.search import NSGA2 as NSGA2
    from raynas.search import Evolution as Evolution
    from raynas.search import ParetoEvolution as ParetoEvolution
    from raynas.search import PredictorEvolution as PredictorEvolution
    from raynas.search import RandomSearch as RandomSearch
    from raynas.space import Arch as Arch
    from raynas.space import Space as Space
    from raynas.space import load_arch as load_arch
    from raynas.space import load_space as load_space

_PUBLIC = {
    **dict.fromkeys(("load_space", "load_arch", "Space", "Arch"), "raynas.space"),
    "Resources": "raynas.cluster.resources",
    "cost": "raynas.costs",
    "build_supernet": "raynas.nets",
    "attention_maps": "raynas.nets.attention_maps",
    "load_preset": "raynas.presets.preset",
    **dict.fromkeys(("Run", "open_run"), "raynas.runs.run"),
    **dict.fromkeys(("train", "import_model", "pipeline", "adapt", "elastic_space"), "raynas.api.new_runs"),
    **dict.fromkeys(("evolve_space", "ablate", "tune"), "raynas.api.experiments"),
    **dict.fromkeys(("search_run", "rank", "retrain", "evaluate", "export"), "raynas.api.existing_runs"),
    **dict.fromkeys(("report", "status", "list_runs", "compare", "check"), "raynas.api.looks"),
    "ScorePool": "raynas.scoring.pool",
    "LocalScorer": "raynas.scoring.local",
    "ProxyScorer": "raynas.proxies.scorer",
    **dict.fromkeys(("RandomSearch", "Evolution", "NSGA2", "ParetoEvolution", "PredictorEvolution"), "raynas.search"),
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
