"""Expected costs against counting through small spaces and against ViTAS's own numbers; budgets that are aligned."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from raynas.costs import COSTS, cost, span
from raynas.costs.alignment import aligned, dropping
from raynas.costs.expectation import expected_cost
from raynas.errors import ConfigError, InfeasibleError
from raynas.nets.terms import Counts, Term
from raynas.space import Distribution, Space
from raynas.space.rules import Rule
from tests.costs import staged
from tests.space.space_parts import add_family, toy, vit

pytestmark = pytest.mark.usefixtures("staged_family")
SPACES = [vit, staged.depths, staged.anywhere, staged.anywhere_up_to_a_depth]


@pytest.mark.parametrize("make", SPACES)
@pytest.mark.parametrize("kind", ["dimensions", "archs", "uneven", "dropping"])
def test_expected_costs_by_counting(make: Callable[[], Space], kind: str) -> None:
    space = make()
    distribution = {
        "dimensions": lambda: Distribution.uniform(space),
        "archs": lambda: Distribution.uniform(space, "archs"),
        "uneven": lambda: staged.uneven(space),
        "dropping": lambda: dropping(space, 0.3),
    }[kind]()
    codes = space.encode(space.enumerate())
    weights = staged.probabilities(distribution, codes)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    if kind == "archs":
        assert np.ptp(weights) < 1e-15
    expected = expected_cost(distribution)
    for name in COSTS:
        assert expected[name] == pytest.approx(weights @ cost(space, codes)[name], rel=1e-9)


def test_depth_counts_the_blocks_that_are_left() -> None:
    """A stage of three blocks, each dropped with q, leaves d of them with the binomial's probability."""
    space = vit(depth=[1, 2, 3])
    shares = dropping(space, 0.25).probabilities[space.index("depth")]
    left = [math.comb(3, d) * 0.75**d * 0.25 ** (3 - d) for d in (1, 2, 3)]
    assert shares == pytest.approx([each / sum(left) for each in left])
    kept = dropping(staged.anywhere(), 0.25)
    assert kept.probabilities[kept.space.index("stages.0.blocks.1.kept")] == pytest.approx((0.25, 0.75))
    assert kept.probabilities[kept.space.index("stages.1.blocks.0.kept")] == (1.0,)


@pytest.mark.parametrize("make", SPACES)
def test_the_average_is_in_the_middle_of_the_window(make: Callable[[], Space]) -> None:
    space = make()
    codes = space.encode(space.enumerate())
    macs = cost(space, codes)["macs"]
    middle = expected_cost(dropping(space, 0.37))["macs"]
    distribution = aligned(space, "macs", middle - 50, middle + 50)
    assert staged.probabilities(distribution, codes) @ macs == pytest.approx(middle, rel=1e-9)
    drawn = cost(space, distribution.sample_codes(np.random.default_rng(0), 20_000))["macs"]
    assert drawn.mean() == pytest.approx(middle, abs=4 * drawn.std() / math.sqrt(20_000))


def test_budgets_that_cannot_be_aligned() -> None:
    with pytest.raises(InfeasibleError, match=r"gives macs of 1 on average: this space's averages go from .* to "):
        aligned(vit(), "macs", 0, 2)
    with pytest.raises(ConfigError, match="no choice of depth or of blocks kept"):
        aligned(vit(depth=[2], blocks={"heads": [1, 2], "mlp_ratio": [1.0]}), "macs", 0, 2)


# -- ViTAS, version 1: three patch sizes, ten widths, sixteen blocks that are dropped anywhere ----------------------


def _vitas_terms(space: Space) -> list[Term]:
    """The released code's own way of counting: patch tokens alone, and the classifier once for each of them."""

    def tokens(patch: np.ndarray) -> np.ndarray:
        return (224 // patch) ** 2

    def same(macs: np.ndarray) -> Counts:
        return Counts(macs, macs, macs)

    def ends(patch: np.ndarray, width: np.ndarray) -> Counts:
        return same(tokens(patch) * width * (3 * patch**2 + 1000))

    def attention(patch: np.ndarray, width: np.ndarray, query: np.ndarray) -> Counts:
        return same(4 * tokens(patch) * width * query + 2 * tokens(patch) ** 2 * query)

    def mlp(patch: np.ndarray, width: np.ndarray, hidden: np.ndarray) -> Counts:
        return same(2 * tokens(patch) * width * hidden)

    blocks = [f"blocks.{index}" for index in range(16)]
    return [
        Term("ends", ("patch", "width"), ends),
        *(Term(f"{block}.attention", ("patch", "width", f"{block}.query"), attention) for block in blocks),
        *(Term(f"{block}.mlp", ("patch", "width", f"{block}.hidden"), mlp) for block in blocks),
    ]


@pytest.fixture
def vitas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    rules = {"patch": Rule(int, 1, 99, descending=True), "width": Rule(int, 1, 999)}
    rules["blocks.*.kept"] = Rule(bool, 0, 1)
    rules |= {f"blocks.*.{name}": Rule(int, 1, 9999) for name in ("heads", "query", "hidden")}
    add_family(monkeypatch, "vitas", replace(staged.STAGED, dimensions=rules, required=None), _vitas_terms)
    tenths = [tenth / 10 for tenth in range(1, 11)]
    yield toy(
        "vitas",
        {
            "patch": [32, 16, 14],
            "width": [round(384 * tenth) for tenth in tenths],
            "blocks": {
                "repeat": 16,
                "kept": [False, True],
                "heads": [3, 6, 12, 16],
                "query": [round(480 * tenth) for tenth in tenths],
                "hidden": [round(1440 * tenth) for tenth in tenths],
            },
        },
    )


def test_vitas_average_by_its_own_counter(vitas: Space) -> None:
    """Its analytic average: 67.0M + (1 - q) x 1789.4M. (Our `macs` count otherwise: the classifier once.)"""
    for q in (0.36, 0.5, 0.54):
        expected = expected_cost(dropping(vitas, q))["macs"]
        assert expected == pytest.approx(67.0e6 + (1 - q) * 1789.4e6, abs=0.1e6)
    # Its windows, and the q that its simulation in steps of 0.01 from 0.5 stops at: the first to get inside.
    for low, high, q in ((0.9e9, 1.0e9, 0.50), (0.7e9, 0.9e9, 0.54), (1.2e9, 1.35e9, 0.36)):
        assert low <= expected_cost(dropping(vitas, q))["macs"] <= high
        solved = 1 - aligned(vitas, "macs", low, high).probabilities[vitas.index("blocks.3.kept")][1]
        assert solved == pytest.approx(1 - ((low + high) / 2 - 67.0e6) / 1789.4e6, abs=1e-4)


def test_a_space_of_many_blocks_is_aligned() -> None:
    """Where no depth is small, even the smallest one is unlikely when blocks are dropped with a probability near 1."""
    deep = vit(patch_size=[8], width=[8], depth=[40, 44, 48], blocks={"heads": [1], "mlp_ratio": [2.0]})
    least, most = span(deep)["macs"]
    target = 0.3 * least + 0.7 * most
    assert expected_cost(aligned(deep, "macs", target - 1, target + 1))["macs"] == pytest.approx(target)
