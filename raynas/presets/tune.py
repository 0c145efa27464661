"""Settings of tuning: the parameters with their values, the objectives, the sampler, and when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from raynas.config import Config, Seed
from raynas.text import nearest, shown
from raynas.training.plan import Part


class Param(Config):
    """A parameter: a range of numbers, or choices.

    Whole numbers at both ends make a parameter of whole numbers.

    Attributes:
        low: least value.
        high: greatest value.
        log: True to spread the values evenly by their logarithms.
        step: distance of the values from each other, from `low` on.
        choices: the values, in place of a range: numbers, text, or whatever a preset may hold; tuples become lists.
        when: other parameters and the values of theirs for which there is this one: `{recipe.opt: [sgd]}`.
    """

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    choices: list[Any] | None = Field(None, min_length=1)
    when: dict[str, list[Any]] = Field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """True for a range of whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @model_validator(mode="before")
    @classmethod
    def _settings_alone(cls, given: Any) -> Any:
        """Show the right form to a user who gives a list of choices, or a distribution of another library."""
        if isinstance(given, Mapping | Param):
            return given
        raise ValueError('give {"low": 1e-4, "high": 0.1, "log": true} or {"choices": [1, 2]}')

    @field_validator("choices", "when")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        """Return values as the tables hold them, so that a trial that is begun again gets the same ones."""
        try:
            return json.loads(json.dumps(given))
        except (TypeError, ValueError):
            raise ValueError("give numbers, text, true, false, null, or lists and mappings of these") from None

    @model_validator(mode="after")
    def _range_or_choices(self) -> Param:
        if self.choices is not None:
            if self.log or any(bound is not None for bound in (self.low, self.high, self.step)):
                raise ValueError("choices stand alone: give them, or low and high")
            stored = [encode(choice) for choice in self.choices]
            if twice := [choice for place, choice in enumerate(stored) if choice in stored[:place]]:
                raise ValueError(f"choices: {shown(twice[0])} is there twice, or equals another for Optuna")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, not {self.low:g}")
        if self.step is not None:
            self._check_step(self.low, self.high, self.step)
        return self

    def _check_step(self, low: float, high: float, step: float) -> None:
        if self.log:
            raise ValueError("log and step exclude each other: give one")
        if step <= 0 or (self.whole and not isinstance(step, int)):
            raise ValueError(f"step must be above 0, and whole between whole numbers, not {step:g}")
        steps = round((high - low) / step)
        if abs(low + steps * step - high) > 1e-9 * max(abs(high), abs(low), step):
            fits = low + int((high - low) / step) * step
            raise ValueError(f"high {high:g} is not low and a whole number of steps: give {fits:g}, or another step")

    def __contains__(self, value: Any) -> bool:
        if self.choices is not None:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        assert self.low is not None and self.high is not None
        steps = 0.0 if self.step is None else (value - self.low) / self.step
        on_grid = abs(steps - round(steps)) < 1e-8 and (not self.whole or value == int(value))
        return on_grid and self.low <= value <= self.high


class TuneConfig(Config):
    """The settings of a tuning.

    Attributes:
        params: the parameters by name: any key of the preset, `space` among them, and `fix.<dimension>`.
        objectives: `max` or `min` by objective. For presets those are measures: `probes`, `searched`, `hypervolume`,
            `retrained`, `conflict`, `seconds`, `memory`, `energy`.
        sampler: a sampler of Optuna with its options: `tpe`, `gp`, `cmaes`, `qmc`, `nsgaii`, `nsgaiii`, `grid`,
            `random`, or `module:Class`.
        pruner: a pruner of Optuna with its options, which ends trials early that do badly: `asha`, `hyperband`,
            `median`, `none`, or `module:Class`.
        trials: number of trials; None for no limit.
        seconds: wall time after which no more trials begin, over all attempts; None for no limit.
        target: value of the only objective that suffices; None for none.
        patience: number of trials in a row without a better one after which no more begin; None for no limit.
        seed: seed of the sampler.
        warm_start: studies to learn from: run directories of tunings, and storages of Optuna such as
            `sqlite:///other.db#study`.
    """

    params: dict[str, Param] = Field(min_length=1)
    objectives: dict[str, Literal["max", "min"]] = Field({"searched": "max"}, min_length=1)
    sampler: Part = Part(name="tpe")
    pruner: Part = Part(name="none")
    trials: int | None = Field(30, ge=1, le=10**6)
    seconds: float | None = Field(None, gt=0)
    target: float | None = None
    patience: int | None = Field(None, ge=1, le=10**6)
    seed: Seed = 0
    warm_start: tuple[str, ...] = ()

    @field_validator("pruner", mode="before")
    @classmethod
    def _no_pruner(cls, pruner: Any) -> Any:
        return "none" if pruner is None else pruner

    @field_validator("params")
    @classmethod
    def _conditions(cls, params: Mapping[str, Param]) -> Mapping[str, Param]:
        for name, param in params.items():
            for other, values in param.when.items():
                if other == name:
                    raise ValueError(f"{name}: when: it depends on itself")
                if other not in params:
                    raise ValueError(f"{name}: when: no other parameter {shown(other)}{nearest(other, list(params))}")
                if not values:
                    raise ValueError(f"{name}: when: {other} has no values: give some, or leave it out")
                if wrong := [value for value in values if value not in params[other]]:
                    raise ValueError(f"{name}: when: {other} is never {shown(wrong[0])}")
        if len(in_order(params)) < len(params):
            raise ValueError("when: parameters depend on each other in a circle")
        if never := [name for name in params if [] in conditions(params, name).values()]:
            raise ValueError(f"{never[0]}: when: these conditions exclude each other, so that it is never there")
        return params

    @model_validator(mode="after")
    def _one_objective(self) -> TuneConfig:
        if len(self.objectives) > 1:
            if self.pruner.name != "none":
                raise ValueError(f"pruner: a study of {len(self.objectives)} objectives has none: give one objective")
            if given := [name for name in ("target", "patience") if getattr(self, name) is not None]:
                raise ValueError(f"{given[0]}: it looks at one objective, and there are {len(self.objectives)}")
        return self


def encode(value: Any) -> Any:
    """Return a choice as Optuna stores it: lists and mappings as JSON."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | tuple | dict) else value


def conditions(params: Mapping[str, Param], name: str) -> dict[str, list[Any]]:
    """Return the values of other parameters for which there is a parameter, those included that these depend on."""
    found: dict[str, list[Any]] = {}
    for other, listed in params[name].when.items():
        for each, values in (*conditions(params, other).items(), (other, listed)):
            found[each] = [value for value in found.get(each, values) if value in values]
    return found


def in_order(params: Mapping[str, Param]) -> list[str]:
    """Return the names of parameters, each after those that it depends on; without those of circles."""
    placed: list[str] = []
    while True:
        ready = [name for name in params if name not in placed and params[name].when.keys() <= set(placed)]
        if not ready:
            return placed
        placed += ready


def is_active(param: Param, values: Mapping[str, Any]) -> bool:
    """Return True if there is a parameter, by the values of those before it."""
    return all(other in values and values[other] in listed for other, listed in param.when.items())
