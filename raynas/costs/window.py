"""Random archs whose cost lies in a window, however few they are; and the proof that there are none.

Over the rows of a chain (see `raynas.costs.chain`) the costs of archs are put into bins: a table holds for each row and
bin the probability of the archs that end there. Going forward, a step adds shifted rows of earlier tables; going back
from the bins that meet the window, it draws each alternative in proportion to what it brought. What comes out is
checked by its exact cost, so that archs have precisely the distribution's probabilities, given the window.

Where a common divisor of the costs is wide enough to be the bins' width, a bin is one cost, and nothing is drawn in
vain. Otherwise costs are rounded; how far the roundings of a row add up at most is known, and every bin is drawn from
that an arch of the window may be in. All numbers added are positive, so that a bin without probability has no arch: no
such bin, no arch in the window.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from raynas.costs.bins import CELLS, fill, make_bins, numbers
from raynas.costs.chain_builder import chain_of
from raynas.costs.constraints import interval
from raynas.costs.total import cost
from raynas.errors import InfeasibleError
from raynas.space import Codes, Distribution

_BATCH = 4096
"""Archs drawn at a time."""

_TRIES = 2**17
"""Archs drawn in a row that may miss the window; one of a hundred is usual where windows are narrowest."""


class Window:
    """The archs of a distribution whose cost lies in [low, high], both included and infinite where a side is open.

    It has `cells` bins at most; `finest` makes them as narrow as that allows, instead of as narrow as pays.

    Attributes:
        exact: whether every bin is one cost: nothing is drawn in vain then.
        share: the probability of the bins that are drawn from: of the window's archs, if `exact`, and no less than that
            otherwise. 0 proves that the window is empty.
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
        # How many of the draws from a smooth distribution's bins are in the window, at worst.
        wide = np.append((self._bins.above - self._bins.below)[last[counts > 0]], 0).max()
        size = max(last_cost - first_cost, 0) + 1
        self._rate = size / (size + wide)

    def __str__(self) -> str:
        return f"{self.name} in {interval(self.low, self.high)}"

    def values(self) -> np.ndarray:
        """The costs that archs of the window have, ascending int64; only where bins are exact."""
        rows, bins = self._end_rows[self._end_mass > 0], self._end_bins[self._end_mass > 0]
        return np.unique(self._chain.least[rows] + self._bins.width[rows] * bins)

    def sample_codes(self, rng: np.random.Generator, n: int, tries: int = _TRIES) -> Codes:
        """n random archs of the window as codes [n, dimensions]; the same arch may come more than once.

        Raises:
            InfeasibleError: the window is empty, or so many archs in a row were drawn in vain.
        """
        found = [np.empty((0, len(self.distribution.probabilities)), dtype=np.int16)]
        count = missed = 0
        while count < n:
            if self.share == 0 or missed >= tries:
                raise InfeasibleError(f"0 of {missed} archs drawn had {self}")
            batch = min(max(math.ceil((n - count) / self._rate), missed), _BATCH)  # the more, the longer none is found
            found.append(self.draw(rng, batch))
            count += len(found[-1])
            missed = 0 if len(found[-1]) else missed + batch
        return np.concatenate(found)[:n]

    def draw(self, rng: np.random.Generator, n: int) -> Codes:
        """Those of n random archs, drawn from the bins, that are in the window; the window must not be empty."""
        chain, bins = self._chain, self._bins
        ends = np.cumsum(self._end_mass)
        end = np.searchsorted(ends, rng.random(n) * ends[-1], side="right")
        rows, places = self._end_rows[end], self._end_bins[end]
        spent = np.zeros(n, dtype=np.int64)
        codes = self.distribution.draw(rng, n)  # what costs nothing keeps these choices
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
            # What is settled is known exactly: many an arch that its bin was too coarse for is given up half way.
            least = spent + chain.least[rows] + bins.width[rows] * places
            missed |= (least + bins.above[rows] < self.low) | (least + bins.below[rows] > self.high)
        codes = self.distribution.space.canonical(codes[~missed])
        costs = cost(self.distribution.space, codes)[self.name]
        return codes[(costs >= self.low) & (costs <= self.high)]


@lru_cache(maxsize=2)  # tables may be large
def window_of(distribution: Distribution, name: str, low: float, high: float, cells: int = CELLS) -> Window:
    """A window that archs were found in. It takes up to a few seconds to make, and is kept.

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
    """The costs next to an empty window, in words; nothing where bins of one cost would be too many."""
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
