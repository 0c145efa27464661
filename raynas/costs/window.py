"""Sampling of archs whose cost lies in a window, however rare they are, or the proof that there are none.

The costs of the archs at each row of a chain (see `raynas.costs.chain`) are put into bins: a table holds, for each row
and bin, the probability of the archs that end there. The forward pass adds shifted rows of earlier tables. The backward
pass starts from the bins that meet the window and draws each alternative in proportion to its contribution. Each drawn
arch is checked by its exact cost, so archs have exactly the distribution's probabilities, given the window.

If a common divisor of the costs is wide enough as the bins' width, each bin has a single cost and no draw misses.
Otherwise costs are rounded. The rounding errors of a row are bounded, and every bin that may hold an arch of the window
is drawn from. All added numbers are positive, so a bin of probability 0 has no arch; if all these bins are empty, the
window is empty.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from raynas.costs.bins import CELLS, fill, make_bins, numbers
from raynas.costs.chain_builder import chain_of
from raynas.costs.constraints import interval
from raynas.costs.cost import cost
from raynas.errors import InfeasibleError
from raynas.space import Codes, Distribution

_BATCH = 4096
"""Archs drawn at a time."""

_TRIES = 2**17
"""Consecutive draws that may miss the window; in the narrowest windows usually one in a hundred hits."""


class Window:
    """The archs of a distribution whose cost lies in [low, high], inclusive, with infinities for open sides.

    It has at most `cells` bins; `finest` makes them as narrow as that allows, instead of as narrow as pays.

    Attributes:
        exact: True if every bin has a single cost, so that no draw misses.
        share: the total probability of the bins drawn from: equal to the window's if `exact`, otherwise an upper
            bound. 0 proves that the window is empty.
    """

    def __init__(
        self,
        distribution: Distribution,
        name: str,
        low: float,
        high: float,
        cells: int = CELLS,
        finest: bool = False,
    ):
        self.distribution, self.name = distribution, name
        self.low, self.high = low, high
        self._chain = chain_of(distribution, name)
        least, greatest = self._chain.span()
        first_cost, last_cost = math.ceil(max(low, least)), math.floor(min(high, greatest))
        self._bins = make_bins(self._chain, first_cost, last_cost, cells, finest)
        self.exact = self._bins.exact
        self._mass = fill(self._chain, self._bins)
        last = numbers(self._chain.last)
        first, counts = self._bins.first[last], np.maximum(self._bins.last - self._bins.first + 1, 0)[last]
        self._end_rows = np.repeat(last, counts)
        self._end_bins = np.arange(counts.sum()) + np.repeat(first - np.cumsum(counts) + counts, counts)
        self._end_mass = self._mass[self._bins.base[self._end_rows] + self._end_bins]
        self.share = float(self._end_mass.sum())
        # The lowest share of draws in the window, if the distribution is smooth.
        wide = np.append((self._bins.above - self._bins.below)[last[counts > 0]], 0).max()
        size = max(last_cost - first_cost, 0) + 1
        self._rate = size / (size + wide)

    def __str__(self) -> str:
        return f"{self.name} in {interval(self.low, self.high)}"

    def values(self) -> np.ndarray:
        """Return the costs of the window's archs, ascending int64; for exact bins only."""
        rows, bins = self._end_rows[self._end_mass > 0], self._end_bins[self._end_mass > 0]
        return np.unique(self._chain.least[rows] + self._bins.width[rows] * bins)

    def sample_codes(self, rng: np.random.Generator, n: int, tries: int = _TRIES) -> Codes:
        """Draw n random archs of the window as codes [n, dimensions]; archs may repeat.

        Raises:
            InfeasibleError: the window is empty, or `tries` consecutive draws missed it.
        """
        found = [np.empty((0, len(self.distribution.probabilities)), dtype=np.int16)]
        count = missed = 0
        while count < n:
            if self.share == 0 or missed >= tries:
                raise InfeasibleError(f"0 of {missed} archs drawn had {self}")
            batch = min(max(math.ceil((n - count) / self._rate), missed), _BATCH)  # grows while draws miss
            found.append(self.draw(rng, batch))
            count += len(found[-1])
            missed = 0 if len(found[-1]) else missed + batch
        return np.concatenate(found)[:n]

    def draw(self, rng: np.random.Generator, n: int) -> Codes:
        """Draw n random archs from the bins of a non-empty window and return the ones inside the window."""
        chain, bins = self._chain, self._bins
        ends = np.cumsum(self._end_mass)
        end = np.searchsorted(ends, rng.random(n) * ends[-1], side="right")
        rows, places = self._end_rows[end], self._end_bins[end]
        spent = np.zeros(n, dtype=np.int64)
        codes = self.distribution.draw(rng, n)  # kept for choices without cost
        codes[:, chain.dimensions] = chain.codes[rows - chain.last.start]
        missed = np.zeros(n, dtype=bool)
        for step, shifts in zip(reversed(chain.steps), reversed(bins.shifts), strict=True):
            here = np.flatnonzero((rows >= step.rows.start) & (rows < step.rows.stop) & ~missed)
            if len(here) == 0:
                continue
            local = rows[here] - step.first
            sources, origins = step.sources[local], places[here, None] - shifts[local]
            held = (origins >= bins.first[sources]) & (origins <= bins.last[sources])
            mass = self._mass[np.where(held, bins.base[sources] + origins, 0)]
            bounds = np.cumsum(np.where(held, step.weights[local] * mass, 0), axis=1)
            aim = rng.random(len(here)) * bounds[:, -1]
            chosen = np.arange(len(here)), (bounds <= aim[:, None]).sum(axis=1)
            codes[here[:, None], step.dimensions] = step.codes[chosen[1]]
            rows[here], places[here] = sources[chosen], origins[chosen]
            spent[here] += step.costs[local, chosen[1]]
            # The settled part's cost is exact, so many archs that rounding let into a bin can be rejected early.
            least = spent + chain.least[rows] + bins.width[rows] * places
            missed |= (least + bins.above[rows] < self.low) | (least + bins.below[rows] > self.high)
        codes = self.distribution.space.canonical(codes[~missed])
        costs = cost(self.distribution.space, codes)[self.name]
        return codes[(costs >= self.low) & (costs <= self.high)]


@lru_cache(maxsize=2)  # large tables
def window_of(distribution: Distribution, name: str, low: float, high: float, cells: int = CELLS) -> Window:
    """Make a window in which archs were found, in up to a few seconds; cached.

    Raises:
        InfeasibleError: no arch is in the window, or none was found; the message says which.
    """
    for finest in (False, True):
        window = Window(distribution, name, low, high, cells, finest)
        if window.share == 0:
            raise InfeasibleError(f"no arch has {window}{_nearest(distribution, name, low, high, cells)}")
        try:
            window.sample_codes(np.random.default_rng(0), 1)
        except InfeasibleError as error:
            missed = error
        else:
            return window
    raise InfeasibleError(f"no arch was found that has {window}, which does not prove that there is none") from missed


def _nearest(distribution: Distribution, name: str, low: float, high: float, cells: int) -> str:
    """Describe the costs nearest to an empty window; empty if that needs too many single-cost bins."""
    chain = chain_of(distribution, name)
    least, greatest = chain.span()
    low, high = max(low, least - 1), min(high, greatest + 1)
    margin = max(high - low, 1.0)
    while make_bins(chain, math.ceil(low - margin), math.floor(high + margin), cells).exact:
        values = Window(distribution, name, low - margin, high + margin, cells).values()
        below, above = values[values < low], values[values > high]
        if (len(below) or low - margin < least) and (len(above) or high + margin > greatest):
            return f": the nearest have {' and '.join(str(value) for value in (*below[-1:], *above[:1]))}"
        margin *= 8
    return ""
