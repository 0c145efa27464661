"""Bounds on the costs of archs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from raynas.costs.chain_builder import span
from raynas.costs.cost import COSTS, cost
from raynas.errors import ConfigError, InfeasibleError
from raynas.space import Codes, Space
from raynas.text import nearest, shown

Bounds = tuple[float | None, float | None]
"""Inclusive (low, high); None leaves a side open."""

CostFunction = Callable[[Codes], np.ndarray]
"""A custom cost, such as a predicted latency: from codes [n, dimensions] to values [n]."""

_SPAN_SAMPLES = 2_000
"""Random archs from which the span of a custom cost is estimated."""


class Constraints:
    """Inclusive bounds on the costs of a space's archs.

    Attributes:
        bounds: (low, high) by cost, with infinities for open sides.
        functions: custom costs by name.

    Raises:
        ConfigError: a cost is unknown, a function has the name of a counted cost, or bounds are not a pair (low, high)
            of numbers or None with low <= high.
    """

    def __init__(
        self, space: Space, constraints: Mapping[str, Bounds], functions: Mapping[str, CostFunction] | None = None
    ):
        if not isinstance(constraints, Mapping):
            raise ConfigError(f"constraints: give a mapping such as {{'macs': (None, 1e9)}}, not {shown(constraints)}")
        self.space = space
        functions = {} if functions is None else functions
        if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
            raise ConfigError(f"costs: give functions of codes by name ({{'latency': f}}), not {shown(functions)}")
        self.functions = dict(functions)
        for name in COSTS:
            if name in self.functions:
                raise ConfigError(f"{name} is counted exactly: a cost of your own needs another name")
        known = [*COSTS, *self.functions]
        self.bounds: dict[str, tuple[float, float]] = {}
        for name, bounds in constraints.items():
            if name not in known:
                raise ConfigError(f"no constraint on {shown(name)}{nearest(str(name), known)}")
            self.bounds[name] = _read(name, bounds)

    def costs(self, codes: Codes) -> dict[str, np.ndarray]:
        """Return every cost by name, counted and custom ones, [n] each."""
        return {**cost(self.space, codes), **{name: self.custom(name, codes) for name in self.functions}}

    def custom(self, name: str, codes: Codes) -> np.ndarray:
        """Return a custom cost of codes, [n].

        Raises:
            ConfigError: its function returns something else.
        """
        values = np.asarray(self.functions[name](codes))
        if values.shape != (len(codes),) or values.dtype.kind not in "iuf":
            raise ConfigError(f"cost {shown(name)}: its function must return a number for each of {len(codes)} codes")
        return values

    def feasible(self, codes: Codes) -> np.ndarray:
        """Return True for each row that meets every bound, bool [n]."""
        meets = np.ones(len(codes), dtype=bool)
        if self.bounds:
            costs = cost(self.space, codes)
            costs.update({name: self.custom(name, codes) for name in self.functions if name in self.bounds})
            for name, (low, high) in self.bounds.items():
                meets &= (low <= costs[name]) & (costs[name] <= high)
        return meets

    def check_feasible(self) -> None:
        """Reject bounds that no arch can meet: outside the space's span, or without a whole number in them.

        Raises:
            InfeasibleError: no arch meets the bounds. (Without an error, there may still be none.)
        """
        for name, (low, high) in self.bounds.items():
            if name in self.functions:  # no exact span
                continue
            least, greatest = span(self.space)[name]
            if low > greatest or high < least:
                raise InfeasibleError(f"no arch has {name} in {interval(low, high)}; {self._spans([name])}")
            if math.isfinite(low) and math.isfinite(high) and math.ceil(low) > math.floor(high):
                raise InfeasibleError(f"no arch has {name} in {interval(low, high)}: no whole number is")

    def describe(self) -> str:
        """Return the bounds as text: `params in [5000000, 6000000] and macs in [.., 1300000000]`."""
        return " and ".join(f"{name} in {interval(*bounds)}" for name, bounds in self.bounds.items())

    def infeasible(self, samples: int, found: int = 0, among: str = "") -> InfeasibleError:
        """Return the error for bounds that many random archs missed; `among` describes those archs."""
        after = f"after {found} archs, " if found else ""
        spans = self._spans(list(self.bounds))
        return InfeasibleError(f"{after}0 of {samples} samples{among} had {self.describe()}; {spans}")

    def _spans(self, names: list[str]) -> str:
        if len(names) == 1:
            return f"this space spans {self._span(names[0])}"
        return "this space spans " + " and ".join(f"{name} {self._span(name)}" for name in names)

    def _span(self, name: str) -> str:
        if name not in self.functions:
            return interval(*span(self.space)[name])
        values = self.custom(name, self.space.sample_codes(np.random.default_rng(0), _SPAN_SAMPLES))
        return f"about [{values.min():.4g}, {values.max():.4g}]"


def _read(name: str, bounds: object) -> tuple[float, float]:
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ConfigError(f"constraint on {name}: give (low, high), None for an open side, not {shown(bounds)}")
    for bound in bounds:
        number = isinstance(bound, int | float | np.number) and not isinstance(bound, bool)
        if bound is not None and (not number or bound != bound):
            raise ConfigError(f"constraint on {name}: {shown(bound)} is not a number")
    low = -math.inf if bounds[0] is None else bounds[0]
    high = math.inf if bounds[1] is None else bounds[1]
    if low > high:
        raise ConfigError(f"constraint on {name}: low {low} is greater than high {high}")
    return low, high


def interval(low: float, high: float) -> str:
    """Return bounds as text: `[5000000, 6000000]`, with `..` for an open side."""

    def side(bound: float) -> str:
        return ".." if math.isinf(bound) else f"{bound:.0f}" if bound == math.floor(bound) else f"{bound}"

    return f"[{side(low)}, {side(high)}]"
