"""Windows against counting through small spaces, and narrow ones of real spaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from raynas.costs import COSTS, cost, span
from raynas.costs.bins import CELLS
from raynas.costs.chain_builder import chain_of
from raynas.costs.window import Window, window_of
from raynas.errors import InfeasibleError
from raynas.space import Codes, Distribution, Space, load_space
from tests.costs import staged
from tests.space.space_parts import vit

pytestmark = pytest.mark.usefixtures("staged_family")
DISTRIBUTIONS = [Distribution.uniform, lambda space: Distribution.uniform(space, "archs"), staged.uneven]
SPACES = [vit, staged.depths, staged.anywhere, staged.anywhere_up_to_a_depth]


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def everything(space: Space) -> Codes:
    return space.encode(space.enumerate())


@pytest.mark.parametrize("make", SPACES)
@pytest.mark.parametrize("name", COSTS)
def test_every_cost_that_there_is_and_no_other(make: Callable[[], Space], name: str) -> None:
    space = make()
    codes = everything(space)
    costs = cost(space, codes)[name]
    assert span(space)[name] == (costs.min(), costs.max())
    whole = Window(Distribution.uniform(space), name, -np.inf, np.inf)
    assert whole.exact and whole.share == pytest.approx(1, abs=1e-12)
    assert whole.values().tolist() == np.unique(costs).tolist()


@pytest.mark.parametrize("make", SPACES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("rounded", [False, True])
def test_archs_have_their_probabilities_given_the_window(
    make: Callable[[], Space], distribution: Any, rounded: bool
) -> None:
    space = make()
    codes = everything(space)
    macs = cost(space, codes)["macs"]
    low, high = np.quantile(macs, [0.55, 0.6]).astype(int)
    inside = codes[(low <= macs) & (macs <= high)]
    expected = staged.probabilities(distribution(space), inside)
    # Rounded: bins of several costs each, as in spaces that are too large for others.
    cells = 8 * chain_of(distribution(space), "macs").rows if rounded else CELLS
    one = Window(distribution(space), "macs", low, high, cells)
    assert one.exact is not rounded
    if rounded:
        assert one.share >= expected.sum() - 1e-12
    else:
        assert one.share == pytest.approx(expected.sum(), abs=1e-12)
    n = 30 * len(inside)
    drawn = Counter(row.tobytes() for row in one.sample_codes(rng(), n))
    observed = np.array([drawn[row.tobytes()] for row in inside])
    assert len(inside) > 10 and observed.sum() == n
    assert chisquare(observed, n * expected / expected.sum()).pvalue > 0.001


def test_windows_in_gaps_are_empty_and_their_neighbours_named() -> None:
    space = staged.depths()
    macs = np.unique(cost(space, everything(space))["macs"])
    gaps = np.flatnonzero(np.diff(macs) > 2)[:40]
    assert len(gaps) == 40
    for below, above in zip(macs[gaps], macs[gaps + 1], strict=True):
        assert Window(Distribution.uniform(space), "macs", below + 0.5, above - 0.5).share == 0
    message = rf"no arch has macs in \[{below + 1}, {above - 1}\]: the nearest have {below} and {above}$"
    with pytest.raises(InfeasibleError, match=message):
        window_of(Distribution.uniform(space), "macs", int(below) + 1, int(above) - 1)
    with pytest.raises(InfeasibleError, match=rf"no arch has macs in .*: the nearest have {macs[-1]}$"):
        window_of(Distribution.uniform(space), "macs", int(macs[-1]) + 1, np.inf)


def test_what_is_not_proved_is_not_said() -> None:
    """Bins too coarse to tell: the costs next to the gap fall into those that may meet it."""
    space = staged.depths()
    macs = np.unique(cost(space, everything(space))["macs"])
    middle = macs[len(macs) // 2 :]
    gap = np.flatnonzero(np.diff(middle) > 2)[0]
    cells = 10 * chain_of(Distribution.uniform(space), "macs").rows
    with pytest.raises(
        InfeasibleError, match=r"no arch was found that has .*, which does not prove that there is none"
    ):
        window_of(Distribution.uniform(space), "macs", int(middle[gap]) + 1, int(middle[gap + 1]) - 1, cells)


def test_no_arch_is_off_the_lattice_of_its_costs() -> None:
    """In a space too large for bins of one cost: 30 patch sizes and widths, each with a divisor of its differences."""
    space = load_space("vitas/v1")
    codes = space.sample_codes(rng(), 6000)
    macs = cost(space, codes)["macs"]
    ends = space.values(codes, "patch_size") * 1000 + space.values(codes, "width")
    groups = [macs[ends == each] for each in np.unique(ends)]
    divisors = [int(np.gcd.reduce(group - group[0])) for group in groups]
    assert len(groups) == 30 and min(divisors) > 1000
    low = 900_000_000
    while any((group[0] - low) % divisor <= 2 for group, divisor in zip(groups, divisors, strict=True)):
        low += 1
    with pytest.raises(InfeasibleError, match=rf"^no arch has macs in \[{low}, {low + 2}\]$"):
        window_of(Distribution.uniform(space), "macs", low, low + 2)


def test_the_same_seed_draws_the_same_archs() -> None:
    space = load_space("vitas/v1")
    one = Window(Distribution.uniform(space), "macs", 0.9e9, 0.901e9)
    first, second = (one.sample_codes(rng(), 50) for _ in range(2))
    assert (first == second).all() and len(np.unique(first, axis=0)) == 50
    macs = cost(space, first)["macs"]
    assert (macs >= 0.9e9).all() and (macs <= 0.901e9).all()


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("make", SPACES)
def test_mutants_have_a_distribution_of_their_own(make: Callable[[], Space], change: bool) -> None:
    space = make()
    codes = everything(space)
    parent = codes[len(codes) // 3]
    rates = {space.dimensions[1].template: 0.5, "*": 0.3}
    expected = staged.probabilities(Distribution.of_mutants(space, parent, rates, change), codes)
    assert expected.sum() == pytest.approx(1, abs=1e-12)
    n = 40_000
    drawn = Counter(row.tobytes() for row in space.mutate_codes(np.tile(parent, (n, 1)), rng(), rates, change))
    observed = np.array([drawn[row.tobytes()] for row in codes])
    often = expected * n >= 5
    assert often.sum() > 20
    pooled = [*observed[often], observed[~often].sum()], [*expected[often] * n, expected[~often].sum() * n]
    assert chisquare(*pooled).pvalue > 0.001
