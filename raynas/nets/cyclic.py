"""Cyclic weight sharing (ViTAS v2): the start of each width, and the balance of training over the groups of an axis.

An axis is divided into l groups, and width j uses j of them. Training a width moves each of its groups by about 1/j
(narrow networks move their few weights most), so the influence on group i is x_i, the sum of 1/j over the widths that
use it. The influences of any pattern add up to l. A pattern's gap is S, the sum of (x_i - 1)^2; the cyclic row of
ViTAS's Table 16 gives 2 S.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from operator import mul

import numpy as np

from raynas.errors import UserError
from raynas.nets.cyclic_solver import solve

MOST_GROUPS = 48


@dataclass(frozen=True)
class CyclicPattern:
    """A cyclic pattern: width j uses the groups s_j, s_j + 1, .. s_j + j - 1, modulo the number of groups.

    Attributes:
        starts: s_1 .. s_l, counted from 0; the first and the last are 0.
        bound: proven lower bound on the gap of balanced patterns with as many groups.
    """

    starts: tuple[int, ...]
    bound: Fraction

    @cached_property
    def table(self) -> np.ndarray:
        """[widths, groups] bool, read-only: True if width j (row j - 1) uses a group."""
        groups = len(self.starts)
        places = (np.arange(groups) - np.array(self.starts)[:, None]) % groups
        table = places < np.arange(1, groups + 1)[:, None]
        table.setflags(write=False)
        return table

    @property
    def influences(self) -> tuple[Fraction, ...]:
        """x_i of each group."""
        return influences(self.table)

    @cached_property
    def gap(self) -> Fraction:
        """S, the sum of (x_i - 1)^2."""
        return gap(self.influences)


@lru_cache(maxsize=None, typed=True)  # True is no number of groups
def cyclic_starts(groups: int) -> CyclicPattern:
    """Return the balanced cyclic pattern with the least gap; balanced means that groups' uses differ by at most one.

    These are Eq. 6 (least gap) and Eq. 12 (balance) of ViTAS v2. The pattern for a number of groups never changes,
    since trained weights depend on it. Up to 21 groups it is proven best, and the first in lexicographic order of
    starts among equals. Beyond, it is the best that a fixed procedure finds, and `bound` limits any better one.

    Args:
        groups: 1 to 48. The first call with a number solves it: at once up to 16 groups, within seconds beyond.

    Raises:
        UserError: the number of groups is outside this range.
    """
    if isinstance(groups, bool) or not isinstance(groups, int) or not 1 <= groups <= MOST_GROUPS:
        raise UserError(f"cyclic sharing divides an axis into 1 to {MOST_GROUPS} groups, not {groups!r}")
    return CyclicPattern(*solve(groups))


def ordinal_table(groups: int) -> np.ndarray:
    """Return [widths, groups] bool: width j uses the first j groups. Its gap is l - H_l (harmonic number H_l)."""
    return np.tri(groups, dtype=bool)


def bilateral_tables(groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the left and the right path of bilateral sharing: width j uses the first j and the last j groups."""
    left = ordinal_table(groups)
    return left, left[:, ::-1]


def influences(*paths: np.ndarray) -> tuple[Fraction, ...]:
    """Return x_i of each group, averaged over a pattern's paths so that every pattern has mean 1.

    Args:
        paths: [widths, groups] bool each, one for each trained path.
    """
    uses = np.sum(paths, axis=0, dtype=int)
    weights = [Fraction(1, width * len(paths)) for width in range(1, len(uses) + 1)]
    return tuple(sum(map(mul, column, weights), Fraction(0)) for column in uses.T.tolist())


def gap(influences: tuple[Fraction, ...]) -> Fraction:
    """Return S, the sum of (x_i - 1)^2 over the groups: 0 if all are trained equally."""
    return sum(((x - 1) ** 2 for x in influences), Fraction(0))
