"""Ask/tell search algorithms: numpy, no torch."""

from raynas.search.base import AskTell, Search
from raynas.search.build import build_search
from raynas.search.config import SearchConfig
from raynas.search.evolution import Evolution
from raynas.search.halving import Rung
from raynas.search.history import Evaluated
from raynas.search.loop import run_search
from raynas.search.nsga2 import NSGA2
from raynas.search.optuna_search import OptunaSearch
from raynas.search.pareto import ParetoEvolution
from raynas.search.predictor_evolution import PredictorEvolution
from raynas.search.problem import Problem
from raynas.search.random_search import RandomSearch

__all__ = [
    "NSGA2",
    "AskTell",
    "Evaluated",
    "Evolution",
    "OptunaSearch",
    "ParetoEvolution",
    "PredictorEvolution",
    "Problem",
    "RandomSearch",
    "Rung",
    "Search",
    "SearchConfig",
    "build_search",
    "run_search",
]
