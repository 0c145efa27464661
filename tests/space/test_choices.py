"""Spaces with some dimensions held at one choice."""

from __future__ import annotations

from typing import Any

import pytest

from raynas.errors import ConfigError
from raynas.phases.inputs import load_inputs
from raynas.presets.preset import override
from raynas.space import load_space
from raynas.space.choices import with_fixed
from tests.small_run import PRESET

SPACE = load_space("digits/vit")


def test_dimensions_are_held_one_by_one_or_all_that_are_alike() -> None:
    alike = with_fixed(SPACE, {"blocks.*.heads": 2, "depth": 4})
    assert {each.choices for each in alike.dimensions if each.name.endswith("heads")} == {(2,)}
    assert alike["depth"].choices == (4,) and "blocks.4.heads" not in {each.name for each in alike.dimensions}
    assert alike.largest() in SPACE
    one = with_fixed(SPACE, {"blocks.0.heads": 3})
    assert one["blocks.0.heads"].choices == (3,) and one["blocks.1.heads"] == SPACE["blocks.1.heads"]
    assert with_fixed(SPACE, {}) is SPACE


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"dept": 3}, "digits/vit has no dimension 'dept' .did you mean 'depth'"),
        ({"depth": 9}, "fix: depth of digits/vit is one of 3, 4, 5, not 9"),
        ({"depth": True}, "is one of 3, 4, 5, not True"),
        ({"depth": None}, "is one of 3, 4, 5, not None"),
    ],
)
def test_what_the_space_lacks_is_refused(fixed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_fixed(SPACE, fixed)


def test_a_preset_fixes_dimensions_of_its_space() -> None:
    space, _ = load_inputs(override(PRESET, {"fix": {"depth": 3}}))
    assert space["depth"].choices == (3,)
