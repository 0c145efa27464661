"""Costs of many archs at once, as sums of a family's terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from raynas.errors import UserError
from raynas.nets.terms import Counts, Term
from raynas.space import Arch, Codes, Space
from raynas.space.families import family_module

COSTS: tuple[str, ...] = Counts._fields
"""The names of the costs; see `raynas.nets.terms.Counts`."""


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
    return dict(zip(COSTS, sum_of_terms(space, _codes(space, archs), terms_of(space)), strict=True))


def counted(space: Space, archs: Iterable[Arch] | Codes) -> Iterator[tuple[Term, Counts]]:
    """Yield each term of a space with its costs, int64 [n] each; arguments and errors as for `cost`."""
    return _counted(space, _codes(space, archs), terms_of(space))


def breakdown(space: Space, arch: Arch) -> list[dict[str, Any]]:
    """Return each part's costs: `{"term": "blocks.3.mlp", "macs": ..., "params": ..., "paper_macs": ...}`.

    Inactive parts are left out; the rows add up to `cost`.
    """
    codes = _codes(space, [arch])
    rows = [
        {"term": term.name, **{name: int(count[0]) for name, count in zip(COSTS, counts, strict=True)}}
        for term, counts in _counted(space, codes, terms_of(space))
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
    # A dimension with a parent may be INACTIVE (-1), which has value 0.
    values = [np.array([0, *d.choices] if d.parent else d.choices) for d in dimensions]
    places = [columns[space.index(d.name)] + int(d.parent is not None) for d in dimensions]
    if math.prod(map(len, values)) >= columns.shape[1]:
        return term.count(*(each[place] for each, place in zip(values, places, strict=True)))
    table = term.count(*(grid.ravel() for grid in np.meshgrid(*values, indexing="ij")))
    row = np.ravel_multi_index(places, [len(each) for each in values])
    return Counts(*(counts[row] for counts in table))


@lru_cache(maxsize=32)
def terms_of(space: Space) -> tuple[Term, ...]:
    """Return the terms of a space, which add up to an arch's cost."""
    return tuple(family_module(space.family, "cost").terms(space))


def _codes(space: Space, archs: Iterable[Arch] | Codes) -> Codes:
    if isinstance(archs, Mapping):
        raise UserError("the cost of one arch: give a list, cost(space, [arch])")
    if not isinstance(archs, np.ndarray):
        return space.encode(archs)
    if archs.ndim != 2 or archs.shape[1] != len(space.dimensions):
        raise UserError(f"codes of {space.name} are [n, {len(space.dimensions)}], found {list(archs.shape)}")
    return space.canonical(archs)
