"""A trial of a function that is tuned, in its own process; light, since each trial begins by importing this."""

from __future__ import annotations

import hashlib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from raynas.errors import UserError
from raynas.outer.work import Report
from raynas.text import named


@dataclass
class FunctionTrial:
    """A trial, as the function that is tuned gets to see it.

    Attributes:
        folder: a folder of its own, for checkpoints: a trial that was interrupted finds there what it has left. A URI
            if the run directory is one.
        name: its name, such as `0007`.
    """

    folder: str
    name: str
    _report: Report = field(repr=False)
    _step: int = 0

    def report(self, value: float, step: int | None = None) -> None:
        """Tell a value on the way, after which the trial may be ended by the pruner.

        Args:
            value: of the objective, as far as it is known.
            step: counted from 1, such as the epoch; None for the one after the last of this process, which is wrong in
                a function that goes on from a checkpoint.
        """
        self._step = self._step + 1 if step is None else step
        self._report(self._step, value)


def call_function(
    function: Callable[..., Any], objectives: Mapping[str, str], folder: str, values: Mapping[str, Any], report: Report
) -> dict[str, float]:
    """Call the function that is tuned, and return its results by name."""
    if "://" not in folder:
        os.makedirs(folder, exist_ok=True)
    trial = FunctionTrial(folder, folder.rpartition("/")[2], report)
    found = function(dict(values), trial) if _wants_trial(function) else function(dict(values))
    if not isinstance(found, Mapping):
        if len(objectives) > 1:
            raise UserError(f"it must return a mapping of {', '.join(objectives)}, not {named(found)}")
        found = {next(iter(objectives)): found}
    return numbers(found, objectives)


def _wants_trial(function: Callable[..., Any]) -> bool:
    """Return True if a function has a second parameter that must be given, or is called `trial`."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # some builtins say nothing
        return False
    second = parameters[1] if len(parameters) > 1 else None
    if second is None or second.kind not in (second.POSITIONAL_ONLY, second.POSITIONAL_OR_KEYWORD):
        return False
    return second.default is second.empty or second.name == "trial"


def check_callable(function: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called with a configuration, and a trial if it wants one."""
    try:
        inspect.signature(function).bind(*range(2 if _wants_trial(function) else 1))
    except TypeError as error:
        raise UserError(f"the function is called as function(config) or function(config, trial): {error}") from None
    except ValueError:  # some builtins say nothing
        return


def code_of(function: Callable[..., Any]) -> str | None:
    """Return a digest of a function's compiled code, without what it refers to; None if it has none."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    return None if code is None else hashlib.sha256(repr(_parts(code)).encode()).hexdigest()[:16]


def _parts(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, code.co_varnames, [_constant(value) for value in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _parts(value)
    if isinstance(value, frozenset):  # it has another order in each process
        return sorted(map(repr, value))
    return value


def numbers(found: Mapping[str, Any], objectives: Any) -> dict[str, float]:
    """Return results as numbers; refuse them if an objective is missing or no number."""
    for name in objectives:
        if name not in found:
            raise UserError(f"its results have no {name}, only {', '.join(map(str, found)) or 'nothing'}")
    numbers = {}
    for name, value in found.items():
        try:
            numbers[str(name)] = float(value)
        except (TypeError, ValueError):
            raise UserError(f"{name} must be a number, not {named(value)}") from None
    if wrong := [name for name in objectives if not math.isfinite(numbers[name])]:
        raise UserError(f"{wrong[0]} is not a finite number ({numbers[wrong[0]]})")
    return numbers
