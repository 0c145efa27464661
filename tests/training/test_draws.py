"""Samplers that keep to a budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from training_parts import SPACE, few, plan, recipe

from raynas.config import parse_yaml, validate
from raynas.costs import cost, span
from raynas.costs.alignment import dropping
from raynas.costs.expectation import expected_cost
from raynas.errors import ConfigError, InfeasibleError
from raynas.space import load_space
from raynas.training.inputs import estimate
from raynas.training.plan import Plan


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


def test_no_archs_in_a_mixed_pass() -> None:
    with pytest.raises(ConfigError, match="archs must be a whole number from 1 on, not 0"):
        plan({"name": "mixed", "archs": 0}).build_sampler()(SPACE, np.random.default_rng(0), no_losses)


def test_the_space_opens_over_the_epochs() -> None:
    """A quarter of 40 epochs: after 10 epochs all is open; a budget cannot be met by the largest arch alone."""
    opening = plan("single_path", widening=0.25)
    assert opening.open_space(SPACE, 0, 40).cardinality() == 1
    assert opening.open_space(SPACE, 9, 40).cardinality() == 1  # two choices each: the second comes last
    assert opening.open_space(SPACE, 10, 40) is SPACE
    assert plan("single_path").open_space(SPACE, 0, 40) is SPACE
    with pytest.raises(ValueError, match="widening begins with the largest arch"):
        plan({"name": "single_path", "within": {"macs": [1, 2]}}, widening=0.25)
