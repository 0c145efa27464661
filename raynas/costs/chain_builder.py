"""Construction of a cost's chain from a family's terms; see `raynas.costs.chain`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from raynas.costs.chain import Chain, Step
from raynas.costs.cost import COSTS, terms_of
from raynas.nets.terms import Term
from raynas.space import Distribution, Space


@lru_cache(maxsize=16)
def chain_of(distribution: Distribution, name: str) -> Chain:
    """Build the chain of one cost.

    Raises:
        AssertionError: a term of the family does not fit a chain: it depends on choices activated by different
            switches, or on a switch and other choices beside it.
    """
    return _Builder(distribution, name).build()


@lru_cache(maxsize=32)
def span(space: Space) -> Mapping[str, tuple[int, int]]:
    """Return the exact least and greatest value of every cost over the whole space.

    These may differ from the smallest and largest arch's: a finer patch costs more operations but may save parameters.
    """
    return {name: chain_of(Distribution.uniform(space), name).span() for name in COSTS}


@dataclass(frozen=True)
class _Piece:
    """One cost of a term, with the dimensions that it depends on.

    Attributes:
        path: the switches above it, outermost first.
        acts: the codes of the innermost switch for which it is active.
        dimensions: the dimensions that change its cost.
        costs: int64, one axis for each of `dimensions`.
    """

    path: tuple[int, ...]
    acts: frozenset[int]
    dimensions: tuple[int, ...]
    costs: np.ndarray


@dataclass(eq=False)
class _Part:
    """Terms settled together: the terms of a block that share choices, or a switch with everything below it.

    Attributes:
        own: the choices settled with the part; for a switch, only itself.
        pieces: its terms; for a switch, the terms that depend on the switch itself.
        acts: the codes of the switch above for which the part is active.
        below: the parts below the switch.
    """

    own: set[int]
    pieces: list[_Piece]
    acts: frozenset[int] = frozenset()
    below: list[_Part] = field(default_factory=list)

    def asks(self) -> set[int]:
        """Return all dimensions that change its cost."""
        asked = {dimension for piece in self.pieces for dimension in piece.dimensions}
        return asked.union(*(part.asks() for part in self.below))


class _Builder:
    """Builder of the chain of one cost."""

    def __init__(self, distribution: Distribution, name: str):
        self.distribution = distribution
        self.space: Space = distribution.space
        self.column = COSTS.index(name)
        dimensions = self.space.dimensions
        self.parents = [None if d.parent is None else self.space.index(d.parent) for d in dimensions]
        self.switches = {parent for parent in self.parents if parent is not None}
        outside = {i for i, d in enumerate(dimensions) if d.parent is None and d.unit == d.name}
        self.shared = outside - self.switches
        self.steps: list[Step] = []
        self.rows = 1
        self.made: dict[tuple, int] = {}

    def build(self) -> Chain:
        pieces = [self._read(term) for term in terms_of(self.space)]
        parts = self._parts([piece for piece in pieces if piece.costs.any()], ())
        table = 0
        live: tuple[int, ...] = ()
        while parts:
            part = parts.pop(0)
            during = (*live, *sorted((part.asks() & self.shared).difference(live)))
            for other in [other for other in parts if not other.own and other.asks() <= set(during)]:
                parts.remove(other)  # depends only on choices that are already open
                part.pieces += other.pieces
            later = set().union(*(other.asks() for other in parts))
            after = tuple(dimension for dimension in during if dimension in later) if parts else during
            table = self._settle(part, table, (live, during, after), {})
            live = after
        codes = self._every_code(live)
        last = slice(table, table + len(codes))
        return Chain(self.distribution, tuple(self.steps), last, live, codes)

    # -- terms, sorted into parts ----------------------------------------------------------------------------------

    def _read(self, term: Term) -> _Piece:
        dimensions = [self.space.index(name) for name in term.dimensions]
        path = max((self._path(dimension) for dimension in dimensions), key=len, default=())
        if any(path[: len(above)] != above for above in map(self._path, dimensions)):
            raise AssertionError(f"term {term.name} depends on choices that different switches switch on")
        hanging = [dimension for dimension in dimensions if path and self.parents[dimension] == path[-1]]
        acts = [self._acts(dimension) for dimension in hanging]
        values = [np.array([0, *self.space.dimensions[i].choices])[1:] for i in dimensions]
        grid = np.meshgrid(*values, indexing="ij")
        counts = term.count(*(axis.ravel() for axis in grid))[self.column]
        costs: np.ndarray = np.asarray(counts, dtype=np.int64).reshape([len(each) for each in values])
        for axis in reversed(range(costs.ndim)):
            first = costs.take([0], axis=axis)
            if (costs == first).all():  # such as heads, if the query width is searched separately
                costs = first.squeeze(axis)
                del dimensions[axis]
        return _Piece(path, frozenset.intersection(*acts) if acts else frozenset(), tuple(dimensions), costs)

    def _path(self, dimension: int) -> tuple[int, ...]:
        parent = self.parents[dimension]
        return () if parent is None else (*self._path(parent), parent)

    def _acts(self, dimension: int) -> frozenset[int]:
        parent = self.parents[dimension]
        assert parent is not None
        when = self.space.dimensions[dimension].when
        return frozenset(code for code, choice in enumerate(self.space.dimensions[parent].choices) if choice in when)

    def _parts(self, pieces: Sequence[_Piece], path: tuple[int, ...]) -> list[_Part]:
        """Return the parts below the last switch of `path` (or below none), in the order of their first terms."""
        depth = len(path)
        parts: list[_Part] = []
        for piece in pieces:
            scope = path[-1] if path else None
            own = {d for d in piece.dimensions if self.parents[d] == scope and d not in self.shared}
            own.update(piece.path[depth : depth + 1])
            joined = [part for part in parts if part.own & own] or [_Part(set(), [])]
            if joined[0] not in parts:
                parts.append(joined[0])
            joined[0].own |= own
            joined[0].pieces.append(piece)
            for other in joined[1:]:
                parts.remove(other)
                joined[0].own |= other.own
                joined[0].pieces += other.pieces
        for part in parts:
            if path:
                inner = [p.acts if len(p.path) == depth else self._acts(p.path[depth]) for p in part.pieces]
                part.acts = frozenset.intersection(*inner)
            if part.own & self.switches:
                if len(part.own) > 1:
                    raise AssertionError("a term depends on a switch and on choices beside it")
                (switch,) = part.own
                part.below = self._parts([p for p in part.pieces if len(p.path) > depth], (*path, switch))
                part.pieces = [p for p in part.pieces if len(p.path) == depth]
        return parts

    # -- parts, settled step by step -------------------------------------------------------------------------------

    def _settle(self, part: _Part, table: int, live: tuple[tuple[int, ...], ...], context: Mapping[int, int]) -> int:
        """Add the steps of a part and return the first row of the table after it.

        Args:
            table: the first row of the table before it.
            live: the shared choices that are open before, during and after it.
            context: the codes of the switches above the part.
        """
        before, during, after = live
        own = tuple(sorted(part.own))
        if not part.own & self.switches:
            return self._step((table,), live, own, part.pieces, context)
        if during != before:
            table = self._step((table,), (before, during, during), (), (), context)
        tables = []
        for code in range(len(self.space.dimensions[own[0]].choices)):
            inner = {**context, own[0]: code}
            reached = table
            for below in part.below:
                if code in below.acts:
                    asked = tuple((d, inner[d]) for d in sorted(below.asks() & inner.keys()))
                    key = (id(below), reached, asked)  # tables differ by the switches' codes only if a term needs them
                    if key not in self.made:
                        self.made[key] = self._settle(below, reached, (during, during, during), inner)
                    reached = self.made[key]
            tables.append(reached)
        return self._step(tables, (during, during, after), own, part.pieces, context)

    def _step(
        self,
        tables: Sequence[int],
        live: tuple[tuple[int, ...], ...],
        own: tuple[int, ...],
        pieces: Sequence[_Piece],
        context: Mapping[int, int],
    ) -> int:
        """Add a step and return its first row.

        Args:
            tables: first row of the table to continue, or of one table for each code of a switch, `own`.
            live: the shared choices that are open before, during and after it.
            own: the choices settled besides the shared ones that close.
            pieces: the terms to add.
            context: the codes of the switches above the step.
        """
        before, during, after = live
        settled = (*(dimension for dimension in during if dimension not in after), *own)
        axes = (*after, *settled)
        sizes = self._sizes(axes)
        index: dict[int, np.ndarray] = {d: np.asarray(code) for d, code in context.items()}
        for axis, dimension in enumerate(axes):
            index[dimension] = np.arange(sizes[axis]).reshape([-1 if i == axis else 1 for i in range(len(axes))])

        costs: np.ndarray = np.zeros((), dtype=np.int64)
        for piece in pieces:
            costs = costs + piece.costs[tuple(index[d] for d in piece.dimensions)]
        weights: np.ndarray = np.ones(())
        for dimension in axes:
            if dimension not in before:
                weights = weights * np.array(self.distribution.probabilities[dimension])[index[dimension]]
        sources = np.asarray(tables)[index[own[0]] if len(tables) > 1 else 0]
        for dimension, stride in zip(before, self._strides(before), strict=True):
            sources = sources + stride * index[dimension]

        rows = math.prod(self._sizes(after))
        sources, costs, weights = (np.broadcast_to(each, sizes).reshape(rows, -1) for each in (sources, costs, weights))
        self.steps.append(Step(self.rows, sources, costs, weights, settled, self._every_code(settled)))
        self.rows += rows
        return self.steps[-1].first

    def _sizes(self, dimensions: Sequence[int]) -> list[int]:
        return [len(self.space.dimensions[dimension].choices) for dimension in dimensions]

    def _strides(self, dimensions: Sequence[int]) -> list[int]:
        sizes = self._sizes(dimensions)
        return [math.prod(sizes[i + 1 :]) for i in range(len(sizes))]

    def _every_code(self, dimensions: Sequence[int]) -> np.ndarray:
        """Return every combination of choices, the last fastest, int16 [combinations, dimensions]."""
        sizes = self._sizes(dimensions)
        return np.indices(sizes, dtype=np.int16).reshape(len(sizes), math.prod(sizes)).T
