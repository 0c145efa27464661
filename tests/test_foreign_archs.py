"""Archs of other constants than a space's: refused wherever an arch comes in, because they are other networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import raynas
from raynas.costs import breakdown
from raynas.errors import ConfigError, UserError
from raynas.search.problem import Problem
from raynas.space import Arch, Space, load_space

SPACE: Space = load_space("digits/vit")
FOREIGN = {
    "size": SPACE.with_input(size=16),
    "channels": SPACE.with_input(channels=3),
    "classes": SPACE.with_input(classes=7),
    "qkv_bias": Space.from_dict({**SPACE.to_dict(), "constants": {**SPACE.to_dict()["constants"], "qkv_bias": "none"}}),
}
X = torch.zeros(2, SPACE.channels, *SPACE.input_size)
RNG = np.random.default_rng(0)

WAYS_IN: dict[str, Callable[[Arch], Any]] = {
    "arch": SPACE.arch,
    "off_grid": SPACE.off_grid,
    "fix": SPACE.fix,
    "encode": lambda arch: SPACE.encode([arch]),
    "mutate": lambda arch: SPACE.mutate(arch, RNG),
    "crossover": lambda arch: SPACE.crossover(SPACE.smallest(), arch, RNG),
    "neighbours": SPACE.neighbours,
    "cost": lambda arch: raynas.cost(SPACE, [SPACE.smallest(), arch]),
    "breakdown": lambda arch: breakdown(SPACE, arch),
    "scale": lambda arch: raynas.costs.scale_to_macs(SPACE, arch, 1e6),
    "forward": lambda arch: raynas.build_supernet(SPACE)(X, arch),
    "mixed": lambda arch: raynas.build_supernet(SPACE)(X, [SPACE.smallest(), arch]),
    "extract": lambda arch: raynas.build_supernet(SPACE).extract(arch),
    "select": lambda arch: raynas.build_supernet(SPACE).select(arch),
}


@pytest.mark.parametrize("constant", FOREIGN)
@pytest.mark.parametrize("way", WAYS_IN)
def test_an_arch_of_other_constants_is_refused(way: str, constant: str) -> None:
    arch = FOREIGN[constant].smallest()
    told = "16 x 16 pixels" if constant == "size" else constant
    with pytest.raises(ConfigError, match=f"other constants than space digits/vit: {told}"):
        WAYS_IN[way](arch)
    if way not in ("crossover", "cost", "mixed"):
        WAYS_IN[way](SPACE.arch(dict(arch)))  # its values alone are taken
    assert arch not in SPACE and dict(arch) in SPACE


@pytest.mark.parametrize("value", [None, 7, "width", [1], [SPACE.smallest()]])
def test_what_is_no_arch_is_refused(value: Any) -> None:
    for way in ("arch", "off_grid", "encode", "cost", "extract"):
        with pytest.raises(UserError, match="expected an arch, or a mapping of its values by name, found"):
            WAYS_IN[way](value)


def test_the_cost_of_an_arch_of_other_constants_is_its_own() -> None:
    arch = FOREIGN["size"].smallest()
    assert Problem(SPACE).costs_of(arch)["macs"] == raynas.cost(arch.space, [arch])["macs"][0]
