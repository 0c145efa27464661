"""Random search: uniform, and a first part of any larger one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search import RandomSearch, Search
from raynas.space import Codes, Space
from tests.search.search_parts import drive, vit


def test_a_smaller_budget_is_a_first_part(medium: Space) -> None:
    assert drive(RandomSearch(medium, evaluations=100)) == drive(RandomSearch(medium, evaluations=333))[:100]


def test_scores_change_nothing(medium: Space) -> None:
    first = drive(RandomSearch(medium, evaluations=200))
    assert drive(RandomSearch(medium, evaluations=200), lambda arch: None) == first


@pytest.mark.parametrize(("uniform_over", "deep"), [("dimensions", 1 / 4), ("archs", 1296 / 1554)])
def test_uniform_over_dimensions_or_archs(medium: Space, uniform_over: str, deep: float) -> None:
    """Depth 4 has a quarter of the draws, or the share of its archs (repeats being rare among the first 40)."""
    depths = Counter(
        arch["depth"]
        for seed in range(40)
        for arch in drive(RandomSearch(medium, seed=seed, evaluations=40, uniform_over=uniform_over))  # type: ignore[arg-type]
    )
    # Depth 1 has only 18 archs, so rejecting repeats moves some of its draws elsewhere.
    slack = 0.06 if uniform_over == "dimensions" else 4 * np.sqrt(deep * (1 - deep) / 1600)
    assert depths[4] / 1600 == pytest.approx(deep, abs=slack)


def test_wrong_options_are_named() -> None:
    with pytest.raises(UserError, match="'dimensions' or 'archs', not 'arch'"):
        RandomSearch(vit(), uniform_over="arch")  # type: ignore[arg-type]


def test_visits_a_counted_space_to_its_last_arch() -> None:
    space = vit(depth=[1, 2, 3])
    search = RandomSearch(space, evaluations=2000)
    assert len(set(drive(search))) == space.cardinality() == 774
    assert search.ended == "all 774 archs that meet the constraints have been handed out"


class Threes(Search):
    """A search with one method: three random archs a generation."""

    def _next_generation(self) -> Codes:
        return self.candidates.random(3)


def test_a_search_derived_from_the_base_is_one_method(medium: Space) -> None:
    search = Threes(medium, {"macs": "min"}, seed=1, generations=2)
    asked = drive(search, lambda arch: {})
    assert len(asked) == 9 and search.best() == min(asked, key=lambda arch: cost(medium, [arch])["macs"][0])
    assert [row.generation for row in search.history] == [0] * 3 + [1] * 3 + [2] * 3
    assert drive(Threes(medium, evaluations=4))[:3] == drive(Threes(medium, evaluations=3))
