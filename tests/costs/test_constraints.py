"""Bounds on costs, and sampling within them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from raynas.costs import Constraints, cost, sample_within
from raynas.errors import ConfigError, InfeasibleError
from raynas.space import load_space
from tests.space.space_parts import vit


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def test_bounds_are_inclusive() -> None:
    space = vit()
    codes = space.encode(space.enumerate())
    params = cost(space, codes)["params"]
    low, high = np.sort(params)[[50, 200]]
    meets = Constraints(space, {"params": (int(low), int(high))}).feasible(codes)
    assert (
        (meets == ((params >= low) & (params <= high))).all()
        and meets[params == low].all()
        and meets[params == high].all()
    )
    assert Constraints(space, {"params": (None, low)}).feasible(codes).sum() == (params <= low).sum()
    assert Constraints(space, {"params": (None, None)}).feasible(codes).all()
    assert Constraints(space, {}).feasible(codes).all()
    both = Constraints(space, {"params": (low, None), "macs": (None, 10**5)})
    assert (both.feasible(codes) == ((params >= low) & (cost(space, codes)["macs"] <= 10**5))).all()


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"parms": (1, 2)}, r"no constraint on 'parms' \(did you mean 'params'\?\)"),
        ({"flops": (1, 2)}, r"no constraint on 'flops' \(known: macs, params, paper_macs\)"),
        ({"params": (2, 1)}, "constraint on params: low 2 is greater than high 1"),
        ({"params": 3}, r"constraint on params: give \(low, high\)"),
        ({"params": (1, 2, 3)}, r"constraint on params: give \(low, high\)"),
        ({"params": (True, 2)}, "constraint on params: True is not a number"),
        ({"params": ("1", 2)}, "constraint on params: '1' is not a number"),
        ({"params": (float("nan"), 2)}, "constraint on params: nan is not a number"),
    ],
)
def test_wrong_constraints(constraints: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Constraints(vit(), constraints)


@pytest.mark.parametrize("uniform_over", ["dimensions", "archs"])
def test_samples_within_bounds_keep_their_distribution(uniform_over: Any) -> None:
    space = vit(depth=[1, 2])
    everything = space.encode(space.enumerate())
    params = cost(space, everything)["params"]
    bounds = {"params": (int(np.quantile(params, 0.2)), int(np.quantile(params, 0.6)))}
    inside = everything[Constraints(space, bounds).feasible(everything)]
    drawn = Counter(row.tobytes() for row in sample_within(space, bounds, rng(), 6000, uniform_over))
    observed = np.array([drawn[row.tobytes()] for row in inside])
    assert observed.sum() == 6000 and len(inside) >= 20
    # By dimensions, an arch of depth 1 is as likely as the four of depth 2 that share its other choices.
    weights = (
        np.where(space.values(inside, "depth") == 1, 4.0, 1.0) if uniform_over == "dimensions" else np.ones(len(inside))
    )
    assert chisquare(observed, 6000 * weights / weights.sum()).pvalue > 0.001


def test_a_window_of_a_real_space() -> None:
    space = load_space("autoformer/small")
    codes = sample_within(space, {"params": (22e6, 22.5e6), "macs": (None, 5e9)}, rng(), 100)
    costs = cost(space, codes)
    assert codes.shape == (100, len(space.dimensions))
    assert (costs["params"] >= 22e6).all() and (costs["params"] <= 22.5e6).all() and (costs["macs"] <= 5e9).all()
    assert sample_within(space, {}, rng(), 0).shape == (0, len(space.dimensions))


def test_one_arch_in_a_billion_is_found() -> None:
    space = load_space("autoformer/tiny")
    codes = sample_within(space, {"params": (5_366_056, 5_366_057), "macs": (None, 2e9)}, rng(), 3)
    assert set(space.decode(codes)) == {space.smallest()}


def test_a_gap_between_costs_is_proved() -> None:
    space = vit()
    params = np.unique(cost(space, space.encode(space.enumerate()))["params"])
    widest = np.diff(params).argmax()
    below, above = (int(each) for each in params[widest : widest + 2])
    with pytest.raises(InfeasibleError) as raised:
        sample_within(space, {"params": (below + 1, above - 1), "macs": (1, None)}, rng(), 5)
    assert str(raised.value) == (
        f"no arch has params in [{below + 1}, {above - 1}]: the nearest have {below} and {above}"
    )


def test_it_gives_up_and_says_why() -> None:
    space = load_space("autoformer/tiny")
    # Few archs have so few parameters, and they do not execute that much.
    with pytest.raises(InfeasibleError) as raised:
        sample_within(space, {"params": (None, 5_600_000), "macs": (2e9, None)}, rng(), 5, limit=500)
    assert str(raised.value) == (
        "0 of 500 samples with params in [.., 5600000] had params in [.., 5600000] and macs in [2000000000, ..]; "
        "this space spans params [5366056, 10517272] and macs [1311326976, 2488471424]"
    )


@pytest.mark.parametrize("uniform_over", ["dimensions", "archs"])
def test_narrow_windows_of_real_spaces(uniform_over: Any) -> None:
    """Windows of a few archs in ten thousand: all draws are inside, and nearly all different."""
    space = load_space("autoformer/small")
    for bounds in ({"macs": (3.6e9, 3.602e9)}, {"params": (22e6, 22.005e6), "macs": (4.5e9, 5.3e9)}):
        constraints = Constraints(space, bounds)
        assert constraints.feasible(space.sample_codes(rng(), 5000, uniform_over)).mean() < 1e-3
        codes = sample_within(space, constraints, rng(), 300, uniform_over)
        assert constraints.feasible(codes).all() and len(np.unique(codes, axis=0)) > 290


def test_what_cannot_be_is_refused_without_a_sample() -> None:
    space = load_space("autoformer/tiny")
    with pytest.raises(InfeasibleError, match=r"no arch has params in \[1, 2\]; this .* \[5366056, 10517272\]"):
        Constraints(space, {"params": (1, 2)}).check_feasible()
    with pytest.raises(InfeasibleError, match=r"no arch has params in \[\.\., 5366055\]"):
        sample_within(space, {"params": (None, 5_366_055)}, rng(), 1)
    with pytest.raises(InfeasibleError, match=r"params in \[6000000.25, 6000000.75\]: no whole number"):
        Constraints(space, {"params": (6_000_000.25, 6_000_000.75)}).check_feasible()
    Constraints(space, {"params": (None, 5_366_056)}).check_feasible()
