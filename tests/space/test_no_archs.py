"""Values that are no archs, wherever an arch comes in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import raynas
from raynas.errors import UserError
from raynas.space import Arch, Space, load_space

SPACE: Space = load_space("digits/vit")

WAYS_IN: dict[str, Callable[[Arch], Any]] = {
    "arch": SPACE.arch,
    "off_grid": SPACE.off_grid,
    "encode": lambda arch: SPACE.encode([arch]),
    "cost": lambda arch: raynas.cost(SPACE, [SPACE.smallest(), arch]),
    "extract": lambda arch: raynas.build_supernet(SPACE).extract(arch),
}


@pytest.mark.parametrize("value", [None, 7, "width", [1], [SPACE.smallest()]])
def test_what_is_no_arch_is_refused(value: Any) -> None:
    for way in ("arch", "off_grid", "encode", "cost", "extract"):
        with pytest.raises(UserError, match="expected an arch, or a mapping of its values by name, found"):
            WAYS_IN[way](value)
