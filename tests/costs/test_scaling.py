"""A hand-designed network brought to another budget."""

from __future__ import annotations

import pytest

from raynas.costs import cost, scale_to_macs
from raynas.errors import InfeasibleError, UserError
from raynas.space import Arch, load_arch, load_space


def macs(arch: Arch) -> int:
    return int(cost(arch.space, [arch])["macs"][0])


@pytest.mark.parametrize("target", [0.7e9, 1.3e9, 2.5e9, 9e9])
def test_deit_of_other_sizes(target: float) -> None:
    deit = load_arch("autoformer/published/deit_tiny")
    scaled = scale_to_macs(deit.space, deit, macs=target)
    assert macs(scaled) == pytest.approx(target, rel=0.02)
    assert {name: value for name, value in scaled.items() if name != "width"} == {
        name: value for name, value in deit.items() if name != "width"
    }
    head_dim = scaled.space.constants.head_dim
    assert scaled["width"] / head_dim == pytest.approx(3, rel=0.03)
    assert scaled.space.constants.attention_scale == pytest.approx(head_dim**-0.5)


def test_nothing_of_the_same_shape_is_nearer() -> None:
    """Every factor's network, by brute force."""
    from raynas.space.families import family_of

    space, deit = load_space("digits/vit"), load_arch("digits/deit")
    scaled = []
    for factor in range(40, 400, 3):
        constants, values = family_of("vit").scale(deit.space.constants, deit, factor / 400)
        scaled.append(macs(deit.space.replace(constants=constants).off_grid(values)))
    for target in (0.5e6, 1e6, 1.23456e6):
        nearest = min(abs(count - target) for count in scaled)
        assert abs(macs(scale_to_macs(space, deit, macs=target)) - target) <= nearest


def test_the_same_budget_gives_the_same_network() -> None:
    space, deit = load_space("digits/vit"), load_arch("digits/deit")
    assert scale_to_macs(space, deit, macs=macs(deit)) == deit


def test_budgets_that_cannot_be() -> None:
    space, deit = load_space("digits/vit"), load_arch("digits/deit")
    for target in (0, -1, float("nan"), float("inf"), "1G"):
        with pytest.raises(UserError, match="must be a positive number"):
            scale_to_macs(space, deit, macs=target)  # type: ignore[arg-type]
    with pytest.raises(InfeasibleError, match=r"cannot scale arch .*head_dim.* less than"):
        scale_to_macs(space, deit, macs=1e18)
    assert scale_to_macs(space, deit, macs=1)["width"] == 1
