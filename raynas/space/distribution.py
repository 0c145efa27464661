"""Probability distributions over archs, for samplers and expected costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raynas.arguments import check_generator
from raynas.space.codes import INACTIVE, Codes, Probability, Uniform
from raynas.space.counting import count_below
from raynas.space.space import Space


@dataclass(frozen=True)
class Distribution:
    """A distribution of archs in which every active dimension is drawn independently.

    Attributes:
        probabilities: for each dimension of the space, the probabilities of its choices, which sum to 1.
    """

    space: Space
    probabilities: tuple[tuple[float, ...], ...]

    @classmethod
    def uniform(cls, space: Space, over: Uniform = "dimensions") -> Distribution:
        """Make every choice (`dimensions`) or every arch (`archs`) equally likely; see `Space.sample_codes`."""
        if over == "archs":
            return cls(space, tuple(_shares(below) for below in count_below(space.dimensions)))
        return cls(space, tuple(_shares([1] * len(dimension.choices)) for dimension in space.dimensions))

    @classmethod
    def of_mutants(cls, space: Space, code: np.ndarray, probability: Probability, change: bool = False) -> Distribution:
        """Return the distribution of `Space.mutate_codes` applied to one arch, int16 [dimensions]."""
        shares = []
        for dimension, choice, rate in zip(space.dimensions, code, space.mutation_rates(probability), strict=True):
            size = len(dimension.choices)
            each = np.full(size, 1 / size)
            if choice != INACTIVE:
                if change and size > 1:
                    each = np.full(size, 1 / (size - 1))
                    each[choice] = 0
                each = rate * each
                each[choice] += 1 - rate
            shares.append(_shares(each.tolist()))
        return cls(space, tuple(shares))

    def with_weights(self, weights: Mapping[str, Sequence[float]]) -> Distribution:
        """Return this distribution with other weights, of any sum, for the choices of the named dimensions."""
        changed = list(self.probabilities)
        for name, values in weights.items():
            changed[self.space.index(name)] = _shares(values)
        return Distribution(self.space, tuple(changed))

    def draw(self, rng: np.random.Generator, n: int) -> Codes:
        """Draw a choice for every dimension of n archs, inactive ones included: the codes are not canonical yet."""
        check_generator(rng)
        codes = np.empty((n, len(self.probabilities)), dtype=np.int16)
        for index, shares in enumerate(self.probabilities):
            bounds = np.cumsum(shares)
            codes[:, index] = np.searchsorted(bounds, rng.random(n) * bounds[-1], side="right")
        return codes

    def sample_codes(self, rng: np.random.Generator, n: int) -> Codes:
        """Draw n random archs as codes [n, dimensions]."""
        return self.space.canonical(self.draw(rng, n))


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    total = sum(weights)
    return tuple(weight / total for weight in weights)  # large ints divide to the nearest float
