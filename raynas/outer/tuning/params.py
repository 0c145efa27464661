"""Parameters of a tuning as Optuna knows them: distributions, suggestions, grids."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import Trial

from raynas.errors import UserError
from raynas.presets.tune import Param, encode, in_order, is_active

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution


def distribution(param: Param) -> Distribution:
    """Return a parameter as a distribution of Optuna."""
    if param.choices is not None:
        return CategoricalDistribution([encode(choice) for choice in param.choices])
    low, high = param.low, param.high
    assert low is not None and high is not None
    if param.whole:
        return IntDistribution(int(low), int(high), log=param.log, step=int(param.step or 1))
    return FloatDistribution(float(low), float(high), log=param.log, step=param.step)


def decode(param: Param, value: Any) -> Any:
    """Return a value of a parameter that Optuna stored."""
    if param.choices is None:
        return value
    return next(choice for choice in param.choices if (known := encode(choice)) == value and type(known) is type(value))


def suggest(trial: Trial, params: Mapping[str, Param]) -> dict[str, Any]:
    """Let a trial of Optuna suggest the values of all parameters that there are in it."""
    values: dict[str, Any] = {}
    for name in in_order(params):
        param, of = params[name], distribution(params[name])
        if not is_active(param, values):
            continue
        if isinstance(of, CategoricalDistribution):
            values[name] = decode(param, trial.suggest_categorical(name, of.choices))
        elif isinstance(of, IntDistribution):
            values[name] = trial.suggest_int(name, of.low, of.high, log=of.log, step=of.step)
        else:
            values[name] = trial.suggest_float(name, of.low, of.high, log=of.log, step=of.step)
    return values


def grid(params: Mapping[str, Param]) -> list[dict[str, Any]]:
    """Return all combinations of the parameters' values, as Optuna stores them; refuse values without end."""
    listed = {name: list(_values(name, params[name])) for name in in_order(params)}
    found: dict[str, dict[str, Any]] = {}
    for combination in itertools.product(*listed.values()):
        values: dict[str, Any] = {}
        for name, value in zip(listed, combination, strict=True):
            if is_active(params[name], values):
                values[name] = value
        stored = {name: encode(value) for name, value in values.items()}
        found.setdefault(json.dumps(stored), stored)
    return list(found.values())


def _values(name: str, param: Param) -> Iterator[Any]:
    if param.choices is not None:
        yield from param.choices
        return
    step = param.step or (1 if param.whole and not param.log else None)
    if step is None:
        raise UserError(f"{name} has no end of values for sampler grid: give it choices, or a step")
    assert param.low is not None and param.high is not None
    for place in range(round((param.high - param.low) / step) + 1):
        value = param.low + place * step
        yield value if param.whole else min(float(value), float(param.high))
