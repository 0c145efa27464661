"""Costs of many archs at once, as sums of a family's terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from raynas.errors import UserError
from raynas.nets.terms import Counts, Term
from raynas.space import Arch, Codes, Dimension, Space, check_space
from raynas.space.families import family_module

COSTS: tuple[str, ...] = Counts._fields
"""The names of the costs; see `raynas.nets.terms.Counts`."""

_COMBINATIONS = 4096
"""Combinations of choices up to which terms share a table, which then stays in the processor's cache."""

_LARGEST = 2**16
"""Combinations of choices above which a term has no table, and is evaluated for each arch."""

_ROWS = 4096
"""Archs that are looked up at a time."""


def cost(space: Space, archs: Iterable[Arch] | Codes) -> dict[str, np.ndarray]:
    """Return the costs of archs: of their extracted subnets, for one image.

    Args:
        space: the archs' space.
        archs: archs, or their codes [n, dimensions].

    Returns:
        int64 [n] each: `macs` (multiply-accumulates executed), `params`, and `paper_macs` (multiply-accumulates as the
        paper computes the same; see `raynas.nets.terms.Counts`).

    Raises:
        UserError: an arch is not in this space or has other constants, or codes do not have its shape.
    """
    codes = _given(space, archs)
    tables, rest = _tables(space)
    total = np.empty((len(COSTS), len(codes)), dtype=np.int64)
    for start in range(0, len(codes), _ROWS):
        piece = space.canonical(codes[start : start + _ROWS])
        columns = np.ascontiguousarray(piece.T, dtype=np.int64)
        found = np.zeros((len(piece), len(COSTS)), dtype=np.int64)
        for table in tables:
            found += table.costs.take(table.first + table.steps @ columns[table.dimensions], axis=0)
        total[:, start : start + _ROWS] = found.T
        if rest:
            total[:, start : start + _ROWS] += sum_of_terms(space, piece, rest)
    return dict(zip(COSTS, total, strict=True))


def counted(space: Space, archs: Iterable[Arch] | Codes) -> Iterator[tuple[Term, Counts]]:
    """Yield each term of a space with its costs, int64 [n] each; arguments and errors as for `cost`."""
    return _counted(space, space.canonical(_given(space, archs)), terms_of(space))


def breakdown(space: Space, arch: Arch) -> list[dict[str, Any]]:
    """Return each part's costs: `{"term": "blocks.3.mlp", "macs": ..., "params": ..., "paper_macs": ...}`.

    Inactive parts are left out; the rows add up to `cost`.
    """
    rows = [
        {"term": term.name, **{name: int(count[0]) for name, count in zip(COSTS, counts, strict=True)}}
        for term, counts in counted(space, [arch])
    ]
    return [row for row in rows if any(row[name] for name in COSTS)]


def sum_of_terms(space: Space, codes: Codes, terms: Iterable[Term]) -> np.ndarray:
    """Return the sum of some terms, int64 [costs, n]."""
    total = np.zeros((len(COSTS), len(codes)), dtype=np.int64)
    for _, counts in _counted(space, codes, terms):
        total += counts
    return total


def _counted(space: Space, codes: Codes, terms: Iterable[Term]) -> Iterator[tuple[Term, Counts]]:
    columns = np.ascontiguousarray(codes.T)  # a term reads whole columns
    return ((term, _count(space, term, columns)) for term in terms)


def _count(space: Space, term: Term, columns: np.ndarray) -> Counts:
    """Evaluate one term for every arch [n], from the columns of their codes [dimensions, n].

    A term depends on few choices: if it has fewer combinations than there are rows, it is computed once for each and
    looked up.
    """
    dimensions = [space[name] for name in term.dimensions]
    values = [_values(dimension) for dimension in dimensions]
    places = [columns[space.index(d.name)] + int(d.parent is not None) for d in dimensions]
    if math.prod(map(len, values)) >= columns.shape[1]:
        return term.count(*(each[place] for each, place in zip(values, places, strict=True)))
    table = term.count(*(grid.ravel() for grid in np.meshgrid(*values, indexing="ij")))
    row = np.ravel_multi_index(places, [len(each) for each in values])
    return Counts(*(counts[row] for counts in table))


class _Table(NamedTuple):
    """The sum of some terms for every combination of the choices that they depend on.

    Attributes:
        dimensions: the columns of these choices in codes [k].
        first, steps: the combination of codes c [k] is in row `first + steps @ c`.
        costs: int64 [combinations, costs].
    """

    dimensions: np.ndarray
    first: int
    steps: np.ndarray
    costs: np.ndarray


@lru_cache(maxsize=32)
def _tables(space: Space) -> tuple[tuple[_Table, ...], tuple[Term, ...]]:
    """Return the tables of a space's terms, and the terms that are too large for one.

    Terms that share a dimension (the two halves of a block, which share the width) share a table if it is small.
    """
    groups: list[tuple[set[str], list[Term]]] = []
    rest = []
    for term in terms_of(space):
        names = set(term.dimensions)
        if _combinations(space, names) > _LARGEST:
            rest.append(term)
            continue
        alike = (each for each in groups if each[0] & names)
        joined = next((each for each in alike if _combinations(space, each[0] | names) <= _COMBINATIONS), None)
        if joined is None:
            groups.append((names, [term]))
        else:
            joined[0].update(names)
            joined[1].append(term)
    return tuple(_table(space, sorted(map(space.index, names)), terms) for names, terms in groups), tuple(rest)


def _combinations(space: Space, names: Iterable[str]) -> int:
    return math.prod(len(_values(space[name])) for name in names)


def _values(dimension: Dimension) -> np.ndarray:
    """Return the values of a dimension; with a parent it may be INACTIVE (-1), which has value 0."""
    return np.array([0, *dimension.choices] if dimension.parent else dimension.choices)


def _table(space: Space, indices: Sequence[int], terms: Iterable[Term]) -> _Table:
    dimensions = [space.dimensions[index] for index in indices]
    choices = [_values(dimension) for dimension in dimensions]
    steps = [math.prod(map(len, choices[place + 1 :])) for place in range(len(choices))]
    rows = np.arange(math.prod(map(len, choices)))  # not numpy's grids, which have 32 or 64 axes at most
    values = {d.name: each[rows // step % len(each)] for d, each, step in zip(dimensions, choices, steps, strict=True)}
    costs = np.zeros((len(rows), len(COSTS)), dtype=np.int64)
    for term in terms:
        costs += np.stack(term.count(*(values[name] for name in term.dimensions)), axis=1)
    first = sum(step for step, dimension in zip(steps, dimensions, strict=True) if dimension.parent)
    return _Table(np.array(indices), first, np.array(steps), costs)


@lru_cache(maxsize=32)
def terms_of(space: Space) -> tuple[Term, ...]:
    """Return the terms of a space, which add up to an arch's cost."""
    return tuple(family_module(space.family, "cost").terms(space))


def _given(space: Space, archs: Iterable[Arch] | Codes) -> Codes:
    """Return the codes of archs, which may not be canonical if they are given as codes."""
    check_space(space)
    if isinstance(archs, Mapping):
        raise UserError("the cost of one arch: give a list, cost(space, [arch])")
    if not isinstance(archs, np.ndarray):
        return space.encode(archs)
    if archs.ndim != 2 or archs.shape[1] != len(space.dimensions):
        raise UserError(f"codes of {space.name} are [n, {len(space.dimensions)}], found {list(archs.shape)}")
    return archs
