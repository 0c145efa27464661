"""Samplers that keep to a budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raynas.config import validate
from raynas.costs import cost, span
from raynas.costs.alignment import dropping
from raynas.costs.expectation import expected_cost
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, InfeasibleError
from raynas.phases.inputs import estimate
from raynas.results.run_dir import plain
from raynas.space import load_space
from raynas.training.plan import Plan
from tests.training.training_parts import SPACE, few, plan, recipe


def no_losses(archs: object) -> list[float]:
    raise AssertionError("these samplers ask for no losses")


def macs_of(sampler: Any, draws: int, seed: int = 0) -> np.ndarray:
    """MACs of the random passes of so many steps."""
    step, rng = plan(sampler).build_sampler(), np.random.default_rng(seed)
    passes = [this for _ in range(draws) for this in step(SPACE, rng, no_losses) if this.role == "random"]
    return cost(SPACE, [arch for this in passes for arch in this.archs])["macs"]


@pytest.mark.parametrize("name", ["single_path", "sandwich"])
def test_an_aligned_sampler_meets_the_budget_on_average(name: str) -> None:
    uniform = expected_cost(dropping(SPACE, 0.5))["macs"]
    target = 1.08 * uniform
    macs = macs_of({"name": name, "align": {"macs": [target - 10, target + 10]}}, 1500)
    deviation = macs.std() / len(macs) ** 0.5
    assert macs.mean() == pytest.approx(target, abs=4 * deviation) and 4 * deviation < target - uniform


@pytest.mark.parametrize("name", ["single_path", "sandwich"])
def test_archs_drawn_within_a_budget_are_all_inside(name: str) -> None:
    least, greatest = span(SPACE)["macs"]
    low, high = least + 0.4 * (greatest - least), least + 0.6 * (greatest - least)
    macs = macs_of({"name": name, "within": {"macs": [low, high], "params": [None, 1e9]}}, 40)
    assert (macs >= low).all() and (macs <= high).all()


def test_the_generators_state_is_all_there_is_to_resume() -> None:
    space = load_space("autoformer/small")
    for budget in ({"align": {"macs": ["5.0e9", "5.4e9"]}}, {"within": {"macs": [3.6e9, 3.602e9]}}):
        sampler = plan({"name": "single_path", **budget}).build_sampler()
        rng, resumed = np.random.default_rng(1), np.random.default_rng(2)
        sampler(space, rng, no_losses)
        resumed.bit_generator.state = rng.bit_generator.state
        again = plan({"name": "single_path", **budget}).build_sampler()
        for _ in range(5):
            assert sampler(space, rng, no_losses) == again(space, resumed, no_losses)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("align: {macs: [1.0e+6, 2.0e+6]}, within: {macs: [1.0e+6, 2.0e+6]}", "or within (every arch does), not both"),
        ("align: {macs: [1.0e+6, null]}", "align: give one cost with both bounds, such as {macs: [0.9e+9, 1.0e+9]}"),
        ("align: {macs: [1, 2], params: [1, 2]}", "align: give one cost with both bounds"),
        ("align: {macs: [1, 2]}, uniform_over: archs", "goes with uniform_over: dimensions alone"),
        ("align: 1.0e+6", "align: give bounds by cost, such as {macs: [0.9e+9, 1.0e+9]}, null for an open side, not"),
        ("within: {macs: [1, 2, 3]}", "within: give bounds by cost"),
        ("within: {mac: [1, 2]}", "within: no cost 'mac' (did you mean 'macs'?)"),
        ("align: {macs: [true, false]}", "align: give bounds by cost"),
        ("uniform_over: arch", "uniform_over is dimensions or archs, not 'arch'"),
        ("within: {macs: [2.0e+6, 1.0e+6]}", "within: macs: the lower bound 2e+06 is above the upper bound 1e+06"),
    ],
)
def test_wrong_budgets_are_told_when_the_preset_is_read(options: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(Plan, parse_yaml(f"sampler: {{name: single_path, {options}}}", "p.yaml"))
    assert message in str(caught.value) and str(caught.value).startswith("p.yaml:1: sampler: ")
    assert "\n" not in str(caught.value)


def test_budgets_out_of_a_space_are_told_before_training() -> None:
    for option in ("align", "within"):
        with pytest.raises(InfeasibleError, match=r"this space"):
            estimate(SPACE, few(), plan({"name": "sandwich", option: {"macs": [1, 2]}}), recipe())


def test_archs_of_a_mixed_pass() -> None:
    (this,) = plan({"name": "mixed", "archs": 5}).build_sampler()(SPACE, np.random.default_rng(0), no_losses)
    assert this.role == "mixed" and len(this.archs) == 5 and len(set(this.archs)) > 1
    dealt = plan({"name": "mixed", "archs": 4, "dealt": True}).build_sampler()
    for seed in range(20):
        (this,) = dealt(SPACE, np.random.default_rng(seed), no_losses)
        assert sorted(arch["width"] for arch in this.archs) == [8, 8, 16, 16]
        assert sorted(arch["depth"] for arch in this.archs) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ({"name": "mixed"}, "sampler 'mixed' needs the option 'archs'"),
        ({"name": "mixed", "archs": 4, "dealt": "yes"}, "dealt must be true or false, not 'yes'"),
        ({"name": "mixed", "archs": 4, "dealt": True, "within": {"macs": [1, 2]}}, "leave out align, within"),
    ],
)
def test_a_mixed_pass_that_cannot_be(sampler: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(sampler)


@pytest.mark.parametrize("value", [-1, 10**12, 2.0, "two", True, None])
def test_numbers_of_archs_that_are_none(value: object) -> None:
    for sampler in ({"name": "mixed", "archs": value}, {"name": "sandwich", "random": value}):
        with pytest.raises(ValueError, match="must be a whole number from"):
            plan(sampler)
    with pytest.raises(ValueError, match="archs must be a whole number from 1 to"):
        plan({"name": "mixed", "archs": 0})


def test_equal_budgets_are_equal_settings() -> None:
    """YAML reads 5e5 as text and 500000 as a whole number."""
    budgets = ("[5.0e+5, 8.0e+5]", "[5e5, 8e5]", "[500000, '800000']")
    texts = [f"sampler: {{name: single_path, align: {{macs: {budget}}}}}" for budget in budgets]
    first, *rest = [validate(Plan, parse_yaml(text, "p.yaml")) for text in texts]
    assert all(plain(other) == plain(first) and other == first for other in rest)


BILATERAL = SPACE.replace(constants=SPACE.constants.model_copy(update={"sharing": "bilateral"}))


@pytest.mark.parametrize(
    ("sampler", "passes"),
    [("single_path", (0, 1)), ({"name": "sandwich", "random": 3}, (1, 3)), ({"name": "mixed", "archs": 3}, (0, 1))],
)
@pytest.mark.parametrize("uniform_over", ["archs", "dimensions"])
def test_the_estimate_is_what_all_archs_cost(sampler: Any, passes: tuple[int, int], uniform_over: Any) -> None:
    """By listing the space's archs; where dimensions are uniform, both depths are equally likely.

    In a bilateral supernet everything but the largest arch, of all channels, runs on both sides.
    """
    options = {"name": sampler} if isinstance(sampler, str) else sampler
    step = plan({**options, "uniform_over": uniform_over})
    archs = list(SPACE.enumerate())
    macs, depths = cost(SPACE, archs)["macs"], np.array([arch["depth"] for arch in archs])
    mean = np.mean([macs[depths == 1].mean(), macs[depths == 2].mean()])
    mean = macs.mean() if uniform_over == "archs" else mean
    extremes, random = passes
    expected = extremes * (macs.max() + macs.min()) + random * mean
    assert estimate(SPACE, few(), step, recipe()).macs == pytest.approx(expected)
    on_both = extremes * (macs.max() + 2 * macs.min()) + 2 * random * mean
    assert estimate(BILATERAL, few(), step, recipe()).macs == pytest.approx(on_both)


def test_the_estimate_of_a_budget() -> None:
    """An aligned sampler costs the middle of its window; archs within bounds cost the mean of those that there are."""
    step = plan({"name": "single_path", "align": {"macs": [5.0e3, 6.0e3]}})
    assert estimate(BILATERAL, few(), step, recipe()).macs == pytest.approx(2 * 5.5e3)
    macs = cost(SPACE, list(SPACE.enumerate()))["macs"]
    bound = float(np.median(macs))
    step = plan({"name": "single_path", "within": {"macs": [None, bound]}, "uniform_over": "archs"})
    assert estimate(SPACE, few(), step, recipe()).macs == pytest.approx(macs[macs <= bound].mean(), rel=0.02)


def test_the_estimate_of_a_space_that_opens() -> None:
    """In a quarter of 40 epochs the largest arch alone (every choice is one of two), which has one side."""
    macs = cost(SPACE, list(SPACE.enumerate()))["macs"]
    mean = estimate(SPACE, few(), plan(), recipe(epochs=40)).macs
    opening = estimate(BILATERAL, few(), plan(widening=0.25), recipe(epochs=40)).macs
    assert opening == pytest.approx(2 * (macs.max() / 4 + mean * 3 / 4))


def test_the_space_opens_over_the_epochs() -> None:
    """A quarter of 40 epochs: after 10 epochs all is open; a budget cannot be met by the largest arch alone."""
    opening = plan("single_path", widening=0.25)
    assert opening.open_space(SPACE, 0, 40).cardinality() == 1
    assert opening.open_space(SPACE, 9, 40).cardinality() == 1  # two choices each: the second comes last
    assert opening.open_space(SPACE, 10, 40) is SPACE
    assert plan("single_path").open_space(SPACE, 0, 40) is SPACE
    with pytest.raises(ValueError, match="widening begins with the largest arch"):
        plan({"name": "single_path", "within": {"macs": [1, 2]}}, widening=0.25)
