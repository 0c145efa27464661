"""Costs as sums of a family's terms, over as many archs at once as there are."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from raynas.errors import UserError
from raynas.nets.terms import Counts, Term
from raynas.space import Arch, Codes, Dimension, Space
from raynas.space.counting import every_choice

COSTS: tuple[str, ...] = Counts._fields
"""The names of the costs; see `raynas.nets.terms.Counts`."""


def cost(space: Space, archs: Iterable[Arch] | Codes) -> dict[str, np.ndarray]:
    """What archs of a space cost: for one image, by the extracted subnet.

    Args:
        space: the archs' space.
        archs: archs, or their codes [n, dimensions].

    Returns:
        int64 [n] each: `macs` (multiply-accumulates executed), `params`, and `paper_macs` (multiply-accumulates by the
        paper's way of computing the same; see `raynas.nets.terms.Counts`).

    Raises:
        UserError: an arch is not of this space, or codes are not of its shape.
    """
    return dict(zip(COSTS, _sums(space, _codes(space, archs), _terms(space)), strict=True))


def breakdown(space: Space, arch: Arch) -> list[dict[str, Any]]:
    """What every part of an arch costs: `{"term": "blocks.3.mlp", "macs": ..., "params": ..., "paper_macs": ...}`.

    Parts that do not act are left out; the rows' sum is `cost`.
    """
    codes = _codes(space, [arch])
    rows = [
        {"term": term.name, **{name: int(count[0]) for name, count in zip(COSTS, counts, strict=True)}}
        for term, counts in _counted(space, codes, _terms(space))
    ]
    return [row for row in rows if any(row[name] for name in COSTS)]


@lru_cache(maxsize=32)
def span(space: Space) -> Mapping[str, tuple[int, int]]:
    """The least and the greatest value of every cost over the whole space, exactly.

    Not simply those of the smallest and largest arch: a finer patch costs more operations, but may save parameters.
    For each choice of what all blocks share, every block's own extremes add up.
    """
    shared = [dimension for dimension in space.dimensions if dimension.unit == dimension.name]
    units: dict[str, list[Dimension]] = {}
    for dimension in space.dimensions:
        if dimension.unit != dimension.name:
            units.setdefault(dimension.unit, []).append(dimension)
    terms_of: dict[str | None, list[Term]] = {}
    for term in _terms(space):
        touched = {space[name].unit for name in term.dimensions if space[name].unit in units}
        if len(touched) > 1:
            raise AssertionError(f"term {term.name} depends on more than one block")
        terms_of.setdefault(next(iter(touched), None), []).append(term)

    rows = _shared_codes(space, shared)
    low = _sums(space, rows, terms_of.pop(None, []))
    high = low.copy()
    for unit, dimensions in units.items():
        options = list(product(*(range(len(dimension.choices)) for dimension in dimensions)))
        codes = np.repeat(rows, len(options), axis=0)
        codes[:, [space.dimensions.index(dimension) for dimension in dimensions]] = np.tile(options, (len(rows), 1))
        sums = _sums(space, space.canonical(codes), terms_of.get(unit, [])).reshape(len(COSTS), len(rows), -1)
        low += sums.min(axis=2)
        high += sums.max(axis=2)
    return {name: (int(low[i].min()), int(high[i].max())) for i, name in enumerate(COSTS)}


def _shared_codes(space: Space, shared: list[Dimension]) -> Codes:
    """Every choice of what is not a block's own; the blocks' genes are the first choice for now."""
    options = list(every_choice(shared))
    columns = [
        [dimension.choices.index(option[dimension.name]) if dimension.name in option else 0 for option in options]
        for dimension in space.dimensions
    ]
    return np.array(columns, dtype=np.int16).T


def _sums(space: Space, codes: Codes, terms: Iterable[Term]) -> np.ndarray:
    """The sum of some terms, [costs, n]."""
    total = np.zeros((len(COSTS), len(codes)), dtype=np.int64)
    for _, counts in _counted(space, codes, terms):
        total += counts
    return total


def _counted(space: Space, codes: Codes, terms: Iterable[Term]) -> Iterator[tuple[Term, Counts]]:
    columns = np.ascontiguousarray(codes.T)  # a term reads whole columns
    return ((term, _count(space, term, columns)) for term in terms)


def _count(space: Space, term: Term, columns: np.ndarray) -> Counts:
    """One term for every arch [n], from the columns of their codes [dimensions, n].

    A term depends on few choices: where it can take fewer values than there are rows, it is worked out once for each
    and looked up.
    """
    dimensions = [space[name] for name in term.dimensions]
    # INACTIVE (-1) is a code too where a dimension hangs on another; its value is 0.
    values = [np.array([0, *d.choices] if d.parent else d.choices) for d in dimensions]
    places = [columns[space.index(d.name)] + int(d.parent is not None) for d in dimensions]
    if math.prod(map(len, values)) >= columns.shape[1]:
        return term.count(*(each[place] for each, place in zip(values, places, strict=True)))
    table = term.count(*(grid.ravel() for grid in np.meshgrid(*values, indexing="ij")))
    row = np.ravel_multi_index(places, [len(each) for each in values])
    return Counts(*(counts[row] for counts in table))


@lru_cache(maxsize=32)
def _terms(space: Space) -> tuple[Term, ...]:
    return tuple(importlib.import_module(f"raynas.nets.{space.family}.cost").terms(space))


def _codes(space: Space, archs: Iterable[Arch] | Codes) -> Codes:
    if isinstance(archs, Mapping):
        raise UserError("the cost of one arch: give a list, cost(space, [arch])")
    if not isinstance(archs, np.ndarray):
        return space.encode(archs)
    if archs.ndim != 2 or archs.shape[1] != len(space.dimensions):
        raise UserError(f"codes of {space.name} are [n, {len(space.dimensions)}], found {list(archs.shape)}")
    return space.canonical(archs)
