"""Exact expected costs of random archs, computed from the terms without sampling."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from raynas.costs.cost import COSTS, sum_of_terms, terms_of
from raynas.nets.terms import Term
from raynas.space import Distribution, Space


def expected_cost(distribution: Distribution) -> dict[str, float]:
    """Return the expected value of every cost over a distribution's archs."""
    total = np.zeros(len(COSTS))
    for table in _tables(distribution.space):
        costs = table.costs
        for dimension in reversed(table.dimensions):
            costs = costs @ np.array(distribution.probabilities[dimension])
        total += costs
    return dict(zip(COSTS, total.tolist(), strict=True))


class _Table(NamedTuple):
    """A term's costs for every combination of its choices.

    Attributes:
        dimensions: the term's dimensions, and the dimensions that switch them on and off.
        costs: float64 [costs, choices of the first dimension, of the second, ...].
    """

    dimensions: tuple[int, ...]
    costs: np.ndarray


@lru_cache(maxsize=4)
def _tables(space: Space) -> tuple[_Table, ...]:
    return tuple(_table(space, term) for term in terms_of(space))


def _table(space: Space, term: Term) -> _Table:
    names = set(term.dimensions)
    for dimension in reversed(space.dimensions):  # children follow their parents
        if dimension.name in names and dimension.parent is not None:
            names.add(dimension.parent)
    dimensions = tuple(sorted(map(space.index, names)))
    sizes = [len(space.dimensions[dimension].choices) for dimension in dimensions]
    codes = np.zeros((int(np.prod(sizes)), len(space.dimensions)), dtype=np.int16)
    # Inactive choices get separate entries of equal cost; their probabilities add up to 1.
    codes[:, dimensions] = np.indices(sizes).reshape(len(sizes), -1).T
    costs = sum_of_terms(space, space.canonical(codes), [term])
    return _Table(dimensions, costs.astype(np.float64).reshape(len(COSTS), *sizes))
