"""Configuration of a search in presets and commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat, PositiveFloat, field_validator, model_validator

from raynas.config import Config, Seed, added_field
from raynas.costs import COSTS
from raynas.latency.timing import Conditions
from raynas.search.base import Search, own_options
from raynas.search.evolution import Evolution
from raynas.search.halving import Rung, check_rungs
from raynas.search.nsga2 import NSGA2
from raynas.search.objectives import Direction
from raynas.search.optuna_search import OptunaSearch
from raynas.search.pareto import ParetoEvolution
from raynas.search.predictor_evolution import PredictorEvolution
from raynas.search.racing import Racing
from raynas.search.random_search import RandomSearch
from raynas.text import nearest, shown


def _pair(bounds: Any) -> Any:
    if isinstance(bounds, list | tuple) and len(bounds) == 2:
        return bounds
    raise ValueError("give [low, high], with null for an open side: [null, 4.5e9] is at most 4.5e9")


_Bounds = Annotated[tuple[FiniteFloat | None, FiniteFloat | None], BeforeValidator(_pair)]

SEARCHES: dict[str, type[Search]] = {
    "random": RandomSearch,
    "evolution": Evolution,
    "nsga2": NSGA2,
    "pareto": ParetoEvolution,
    "predictor": PredictorEvolution,
    "optuna": OptunaSearch,
}
"""Our searches by name."""


OPTIONS: dict[str, list[str]] = {name: own_options(search) for name, search in SEARCHES.items()}
"""The options of each of our searches: keyword arguments of its class, documented there."""


TIMED = ("latency", "throughput")
"""Costs measured on a device and predicted for other archs: milliseconds of a batch, and images per second."""


SCORED = ("accuracy", "top5", "loss")
"""Quality measures in a score; costs are computed by the search itself."""


class LatencyConfig(Conditions):
    """Timing of subnets for a search.

    The other attributes are those of `Conditions`.

    Attributes:
        timings: number of random archs to time, for fitting a predictor.
        resources: resources of the Ray actor that times, such as `{GPU: 1}` or `{CPU: 2, jetson: 1}`. None times in the
            search's own process, without Ray.
    """

    timings: int = Field(300, ge=20, le=10**6)
    resources: dict[str, PositiveFloat] | None = None

    @model_validator(mode="after")
    def _gpu(self) -> LatencyConfig:
        if self.resources is not None and self.device != "cpu" and "GPU" not in self.resources:
            raise ValueError("resources: Ray shows an actor no GPU that it did not ask for: add GPU: 1")
        return self


class SearchConfig(Config):
    """A search and its budget.

    Attributes:
        name: `random`, `evolution`, `nsga2`, `pareto`, `predictor`, `optuna`, or the user's own ask/tell class or
            function as `module:object`.
        objectives: directions (`max` or `min`) by name: a field of the score (`accuracy`, `top5`, `loss`), or `macs`,
            `params`, `paper_macs`, `latency`, `throughput`, which the search computes itself.
        constraints: inclusive bounds [low, high] on `macs`, `params`, `paper_macs`, `latency` (milliseconds of a batch)
            and `throughput` (images per second); null leaves a side open, or removes the whole limit.
        latency: measurement of latency and throughput; required if the search uses one of them.
        evaluations: budget in archs scored; None for the search's own default.
        generations: budget in generations after the first population (not for `random`). With both budgets, the first
            one spent ends the search.
        options: keyword arguments of the search's class, such as `population` and `mutation`.
        seed: seed of all random draws of the search.
        batch: archs passed to the scorer at a time, or 16 for each replica if that is more; does not change the
            result, except with racing and rungs, where archs compete with those of their batch of exactly so many, and
            maybe with a search of the user's own, which is asked for exactly so many.
        racing: stopping of archs that cannot reach the search's cut, after a part of the images: `off`,
            `conservative` (the same search as without racing, with a probability of at least 95 %) or `default`
            (each arch as good as the cut is stopped with a probability of at most 20 %).
        rungs: successive halving: cheap judges, one after the other, each of which lets a share of the archs go on to
            the next, in place of racing.
    """

    name: str = "evolution"
    objectives: dict[str, Direction] = Field({"accuracy": "max"}, min_length=1)
    constraints: dict[str, _Bounds] = Field(default_factory=dict)
    latency: LatencyConfig | None = None
    evaluations: int | None = Field(None, ge=1, le=10**6)
    generations: int | None = Field(None, ge=1, le=10**6)
    options: dict[str, Any] = Field(default_factory=dict)
    seed: Seed = 0
    batch: int = Field(50, ge=1, le=10**6)
    racing: Racing = added_field("off")
    rungs: tuple[Rung, ...] = added_field(())

    @field_validator("racing", mode="before")
    @classmethod
    def _off(cls, racing: Any) -> Any:
        return ("on" if racing else "off") if isinstance(racing, bool) else racing  # YAML reads a plain `off` as false

    @field_validator("constraints", mode="before")
    @classmethod
    def _no_limits(cls, constraints: Any) -> Any:
        if not isinstance(constraints, Mapping):
            return constraints
        return {name: bounds for name, bounds in constraints.items() if bounds is not None}

    @field_validator("constraints")
    @classmethod
    def _bounds(cls, constraints: Mapping[str, _Bounds]) -> Mapping[str, _Bounds]:
        for name, (low, high) in constraints.items():
            if name not in (*COSTS, *TIMED):
                raise ValueError(f"no constraint on {name!r}{nearest(name, (*COSTS, *TIMED))}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"{name}: the lower bound {low:g} is above the upper bound {high:g}")
        return constraints

    @model_validator(mode="after")
    def _climbed(self) -> SearchConfig:
        if self.rungs and self.racing != "off":
            raise ValueError("rungs and racing both stop archs early: use one of them")
        check_rungs(self.rungs, self.batch)
        return self

    @model_validator(mode="after")
    def _measured(self) -> SearchConfig:
        by = [name for name in TIMED if name in self.objectives or name in self.constraints]
        if by and self.latency is None:
            raise ValueError(f"{by[0]} needs its conditions in search.latency, such as {{device: cpu, batch_size: 1}}")
        if self.latency is not None and not by:
            raise ValueError("latency: neither an objective nor a constraint goes by latency or throughput")
        return self

    @model_validator(mode="after")
    def _known(self) -> SearchConfig:
        if self.name not in OPTIONS:
            if ":" not in self.name:
                raise ValueError(
                    f"unknown search {shown(self.name)}{nearest(self.name, list(OPTIONS))}; your own: 'module:object'"
                )
            return self
        for key in self.objectives:
            if key not in (known := (*SCORED, *COSTS, *TIMED)):
                raise ValueError(f"objectives: no score or cost {shown(key)}{nearest(key, known)}")
        for key in self.options:
            if key not in OPTIONS[self.name]:
                raise ValueError(f"options: search {self.name!r} has no {key!r}{nearest(key, OPTIONS[self.name])}")
        if self.name == "random" and self.generations is not None:
            raise ValueError("generations: random search has none: set it to null, and give evaluations")
        if self.name == "evolution" and len(self.objectives) > 1:
            raise ValueError("objectives: evolution ranks by one: use nsga2, or make the others constraints")
        return self
