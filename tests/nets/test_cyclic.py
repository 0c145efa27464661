"""The solver of cyclic weight sharing, against the paper, against all patterns, and against another solver."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from raynas.errors import UserError
from raynas.nets.cyclic import bilateral_tables, cyclic_starts, gap, influences, ordinal_table

TABLE_16 = {5: 0.6, 6: 0.3, 7: 0.7, 8: 0.5, 9: 0.8, 10: 0.5}
"""ViTAS v2, the cyclic row: 2 S to one digit."""

LEAST = {5: "3/10", 6: "1/6", 7: "109/315", 8: "17/72", 9: "1997/5040", 10: "673/2520"}
"""S of the best patterns, from a depth-first search in fractions that shares no code with ours."""

LEAST_FLOAT = {
    11: 0.405334295334,
    12: 0.29398989899,
    13: 0.435562493062,
    14: 0.326025641026,
    15: 0.437703685204,
    16: 0.345746568247,
    18: 0.362958989734,
}
"""The same from a compiled search, to twelve digits."""


def table(starts: tuple[int, ...]) -> np.ndarray:
    """[widths, groups] bool, one group after another."""
    groups = len(starts)
    found = np.zeros((groups, groups), dtype=bool)
    for width, start in enumerate(starts, 1):
        for step in range(width):
            found[width - 1, (start + step) % groups] = True
    return found


@pytest.mark.parametrize("groups", range(1, 8))
def test_no_balanced_pattern_is_better(groups: int) -> None:
    best: tuple[Fraction, tuple[int, ...]] | None = None
    for between in product(range(groups), repeat=max(groups - 2, 0)):
        starts = (0, *between, 0)[-groups:]
        uses = table(starts)
        if np.ptp(uses.sum(0)) <= 1:
            found = gap(influences(uses)), starts
            best = found if best is None else min(best, found)
    assert best is not None
    pattern = cyclic_starts(groups)
    assert (pattern.gap, pattern.starts) == best  # of equally good ones the first in lexicographic order


@pytest.mark.parametrize(("groups", "printed"), TABLE_16.items())
def test_the_papers_row(groups: int, printed: float) -> None:
    assert round(float(2 * cyclic_starts(groups).gap), 1) == printed


def test_gaps_are_those_of_another_solver() -> None:
    assert {groups: str(cyclic_starts(groups).gap) for groups in LEAST} == LEAST
    assert {groups: float(cyclic_starts(groups).gap) for groups in LEAST_FLOAT} == pytest.approx(LEAST_FLOAT, abs=1e-12)


@pytest.mark.parametrize("groups", [*range(1, 17), 24])
def test_what_a_pattern_says_of_itself(groups: int) -> None:
    pattern = cyclic_starts(groups)
    assert pattern.starts[0] == pattern.starts[-1] == 0
    assert (pattern.table == table(pattern.starts)).all()
    assert pattern.table.sum(1).tolist() == list(range(1, groups + 1))
    assert np.ptp(pattern.table.sum(0)) <= 1
    expected = [
        sum(Fraction(1, width) for width in range(1, groups + 1) if uses[width - 1]) for uses in pattern.table.T
    ]
    assert list(pattern.influences) == expected
    assert sum(expected) == groups
    assert pattern.gap == sum((x - 1) ** 2 for x in expected)
    assert pattern.bound <= pattern.gap
    assert (pattern.bound == pattern.gap) == (groups <= 16)


def test_beyond_proof_the_bound_is_close() -> None:
    pattern = cyclic_starts(24)
    assert 2 * pattern.gap < 0.807964  # found by a compiled beam search with 20,000 patterns of each width
    assert float(2 * pattern.bound) == pytest.approx(0.805801, abs=1e-5)  # proven by all patterns of the first widths


def test_patterns_stay_as_they_are() -> None:
    """Trained weights depend on them: these may never change."""
    assert cyclic_starts(10).starts == (0, 1, 3, 6, 5, 3, 9, 6, 6, 0)
    assert cyclic_starts(16).starts == (0, 1, 3, 12, 6, 10, 6, 4, 3, 11, 13, 8, 13, 5, 11, 0)
    late = (10, 13, 16, 10, 3, 8, 12, 6, 20, 19, 20, 10, 19, 16, 23, 11, 10, 0, 0)
    assert cyclic_starts(24).starts == (0, 1, 3, 6, 19, *late)
    assert cyclic_starts(10) is cyclic_starts(10)


@pytest.mark.parametrize(
    ("groups", "ordinal", "bilateral"),
    [
        (5, 2.716666666666667, 0.19930555555555557),
        (6, 3.55, 0.30083333333333334),
        (7, 4.4071428571428575, 0.41228174603174605),
        (8, 5.2821428571428575, 0.5313832199546485),
        (9, 6.171031746031746, 0.6565610827664399),
        (10, 7.071031746031746, 0.7866772171831695),
    ],
)
def test_the_other_patterns_on_the_same_scale(groups: int, ordinal: float, bilateral: float) -> None:
    harmonic = sum(Fraction(1, width) for width in range(1, groups + 1))
    one, two = influences(ordinal_table(groups)), influences(*bilateral_tables(groups))
    assert sum(one) == sum(two) == groups
    assert gap(one) == groups - harmonic
    assert float(gap(one)) == pytest.approx(ordinal, abs=1e-12)
    assert float(gap(two)) == pytest.approx(bilateral, abs=1e-12)


@pytest.mark.parametrize("groups", [0, -1, 49, True, 2.0])
def test_a_number_of_groups_that_has_no_pattern(groups: int) -> None:
    cyclic_starts(1), cyclic_starts(2)  # they are kept, and True == 1, 2.0 == 2
    with pytest.raises(UserError, match="1 to 48 groups"):
        cyclic_starts(groups)
