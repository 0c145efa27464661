"""Cost bins for each row of a chain, and their probabilities, from which a window is made."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raynas.costs.chain import Chain

CELLS = 2**25
"""The most bins of all rows together, eight bytes each: 256 MiB."""

FEW_CELLS = 2**21
"""The most bins for a window from which few archs are drawn: quicker to make, slower for each arch."""

_EXACT_CELLS = 2**22
"""Up to this many, bins of a single cost are used for any window: filling them takes a fraction of a second."""

_NEVER = np.iinfo(np.int64).max // 4
"""A cost greater than any arch's."""


@dataclass(frozen=True)
class Bins:
    """Cost bins of a chain's rows; arrays are int64 [rows], except `shifts`.

    A row's costs are counted from its least. Costs are rounded at each step, so an arch in bin b costs b x `width` plus
    an error between `below` and `above`.

    Attributes:
        width: bin width of the row.
        below, above: bounds on the sum of rounding errors; below is at most 0.
        first, last: the bins kept, from which the window can be reached; none if last < first.
        base: index of the row's bin 0 among all cells (bin 0 itself need not be kept).
        shifts: for each step, the number of bins that each alternative adds, int64 [rows, alternatives].
        exact: True if no arch's cost is rounded.
        cells: number of bins kept.
    """

    width: np.ndarray
    below: np.ndarray
    above: np.ndarray
    first: np.ndarray
    last: np.ndarray
    base: np.ndarray
    shifts: tuple[np.ndarray, ...]
    exact: bool
    cells: int


def make_bins(chain: Chain, low: int, high: int, cells: int, finest: bool = False) -> Bins:
    """Make bins of a single cost if they are few enough; else as narrow as pays or, if `finest`, as `cells` allows."""
    needed = _needed(chain, low, high)
    lattice = _common_lattice(chain)
    exact = _layout(chain, needed, lattice)
    if exact.cells <= (cells if finest else min(cells, _EXACT_CELLS)):
        return exact
    # Every step rounds by at most half a bin: at this width, rounding widens the window by at most half on each side.
    width = 0.0 if finest else (high - low) / len(chain.steps)
    width = max(width, np.maximum(needed[1] - needed[0], 0).sum() / cells)
    while (bins := _layout(chain, needed, np.maximum(lattice, math.ceil(width)))).cells > cells:
        width *= 1.25
    return bins


def _needed(chain: Chain, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's range of costs that can reach the window, int64 [rows] each; empty if last < first."""
    first = np.full(chain.rows, _NEVER)
    last = np.full(chain.rows, -_NEVER)
    ends, lattice = chain.last, np.maximum(chain.lattice[chain.last], 1)
    first[ends] = -(-np.maximum(low - chain.least[ends], 0) // lattice) * lattice  # costs are multiples of the lattice
    last[ends] = np.minimum(high - chain.least[ends], chain.reach[ends]) // lattice * lattice
    for step, excess in zip(reversed(chain.steps), reversed(chain.excess), strict=True):
        lows = np.maximum(first[step.rows, None] - excess, 0)
        highs = np.minimum(last[step.rows, None] - excess, chain.reach[step.sources])
        leads = lows <= highs
        np.minimum.at(first, step.sources[leads], lows[leads])
        np.maximum.at(last, step.sources[leads], highs[leads])
    return first, last


def _common_lattice(chain: Chain) -> np.ndarray:
    """Return each row's widest bins that hold a single cost, int64 [rows], equal for rows that meet in a table.

    A row with a single cost fits bins of any width.
    """
    group = np.arange(chain.rows)
    for step in chain.steps:
        varies = np.where(chain.reach[step.sources] > 0, group[step.sources], -1)
        for row in np.flatnonzero((varies >= 0).any(axis=1)):
            met = np.unique(varies[row])
            met = met[met >= 0]
            if len(met) > 1:
                group[np.isin(group, met)] = met[0]
                varies[np.isin(varies, met)] = met[0]
            group[step.first + row] = met[0]
    lattice = np.zeros(chain.rows, dtype=np.int64)
    np.gcd.at(lattice, group, chain.lattice)
    return np.maximum(lattice[group], 1)


def _layout(chain: Chain, needed: tuple[np.ndarray, np.ndarray], width: np.ndarray) -> Bins:
    """Lay out bins of given widths, int64 [rows]."""
    below, above = np.zeros(chain.rows, dtype=np.int64), np.zeros(chain.rows, dtype=np.int64)
    shifts = []
    for step, excess in zip(chain.steps, chain.excess, strict=True):
        each = width[step.rows, None]
        shifts.append((excess + each // 2) // each)
        rounding = excess - shifts[-1] * each
        below[step.rows] = (below[step.sources] + rounding).min(axis=1)
        above[step.rows] = (above[step.sources] + rounding).max(axis=1)
    kept = needed[0] <= needed[1]
    first = np.where(kept, np.maximum(-((above - needed[0]) // width), 0), 0)
    last = np.where(kept, (needed[1] - below) // width, -1)
    counts = np.maximum(last - first + 1, 0)
    base = np.cumsum(counts) - counts - first
    exact = not (below[kept].any() or above[kept].any())
    return Bins(width, below, above, first, last, base, tuple(shifts), exact, int(counts.sum()))


def fill(chain: Chain, bins: Bins) -> np.ndarray:
    """Return the probability of each cell, float64 [cells]."""
    mass = np.zeros(bins.cells)
    mass[: bins.last[0] + 1] = 1.0  # row 0, the empty arch of cost 0, if the window can be reached
    for step, shifts in zip(chain.steps, bins.shifts, strict=True):
        rows = numbers(step.rows)[:, None]
        begin = np.maximum(bins.first[step.sources] + shifts, bins.first[rows])
        end = np.minimum(bins.last[step.sources] + shifts, bins.last[rows]) + 1
        some = (end > begin) & (step.weights > 0)
        to, back = (bins.base[rows] + begin)[some], (bins.base[step.sources] + begin - shifts)[some]
        columns = (to, back, (end - begin)[some], step.weights[some])
        for target, source, count, weight in zip(*(column.tolist() for column in columns), strict=True):
            mass[target : target + count] += weight * mass[source : source + count]
    return mass


def numbers(rows: slice) -> np.ndarray:
    """Return the rows of a slice, int64."""
    return np.arange(rows.start, rows.stop)
