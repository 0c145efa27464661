"""Intervals over seeds against scipy's own tests and hand computed values."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from raynas.comparison import mean_interval, seeds_to_decide


def test_the_interval_of_a_mean_is_that_of_scipys_t_test() -> None:
    values = [0.951, 0.962, 0.94, 0.957, 0.949]
    mean, half = mean_interval(values)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert half is not None and (mean - half, mean + half) == pytest.approx((low, high))


def test_paired_differences_have_the_interval_of_the_paired_t_test() -> None:
    ours, theirs = np.array([3.1, 2.7, 3.6]), np.array([2.9, 2.9, 3.0])
    mean, half = mean_interval((ours - theirs).tolist())
    # by hand: differences 0.2, -0.2, 0.6; mean 0.2, deviation 0.4, t of 2 degrees of freedom 4.302653
    assert mean == pytest.approx(0.2) and half == pytest.approx(4.302653 * 0.4 / 3**0.5, rel=1e-6)
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert half is not None and (mean - half, mean + half) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("mean", "deviation", "wanted"), [(1.0, 1.0, 7), (0.5, 1.0, 18), (3.0, 1.0, 3), (1.0, 0.01, 2)]
)
def test_seeds_that_decide_a_difference(mean: float, deviation: float, wanted: int) -> None:
    """By tables of t, in deviations: 7 have half a width of 2.447 / 7 ** .5 = 0.925, 6 have 1.05; 18 have 0.497."""
    differences = mean + deviation * np.array([-1.0, 1.0, 0.0])
    assert np.std(differences, ddof=1) == pytest.approx(deviation)
    found = seeds_to_decide(differences.tolist())
    assert found == wanted
    for count, decides in ((wanted - 1, False), (wanted, True)):
        if count > 1:
            assert (stats.t.interval(0.95, count - 1, mean, deviation / count**0.5)[0] > 0) == decides


def test_no_number_of_seeds_decides_what_is_no_difference() -> None:
    assert seeds_to_decide([0.1, -0.1]) is None
    assert seeds_to_decide([1e-4 + 1, 1e-4 - 1]) is None
    assert seeds_to_decide([0.0, 0.0]) is None
    assert seeds_to_decide([0.3, 0.3]) == 2
