"""A new family is one folder and one line of the registry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from raynas.costs import cost, scale_to_macs
from raynas.nets import build_supernet
from raynas.scoring.local import LocalScorer
from raynas.space import Space
from raynas.space.families import FAMILIES

DEFINITION = {
    "family": "dummy",
    "input": {"size": [6, 4], "channels": 3},
    "classes": 5,
    "dimensions": {"width": [4, 7, 11]},
}


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Space:
    monkeypatch.setitem(FAMILIES, "dummy", "tests.families.dummy")
    return Space.from_dict(DEFINITION, "dummy")


@pytest.mark.parametrize("sharing", ["ordinal", "cyclic", "bilateral"])
def test_a_new_family_is_built_costed_and_scored(space: Space, sharing: str) -> None:
    space = Space.from_dict({**DEFINITION, "constants": {"sharing": sharing}}, "dummy")
    torch.manual_seed(0)
    supernet = build_supernet(space).eval()
    pixels = torch.randint(256, (40, 3, 6, 4), dtype=torch.uint8)
    labels = torch.randint(5, (40,))
    archs = [space.arch({"width": width}) for width in (4, 7, 11)]
    images = pixels.float() / 255
    costs = cost(space, archs)
    with LocalScorer.from_parts(space, supernet, pixels, labels) as scorer:
        rows = scorer.score(archs)
    for index, (arch, row) in enumerate(zip(archs, rows, strict=True)):
        side = supernet.sides[0]
        subnet = supernet.extract(arch, side)
        torch.testing.assert_close(subnet(images), supernet(images, arch, side=side))
        with FlopCounterMode(display=False) as counter:
            subnet(images[:1])
        assert costs["macs"][index] == row["macs"] == counter.get_total_flops() // 2
        assert costs["params"][index] == row["params"] == sum(p.numel() for p in subnet.parameters())
        right = supernet(images, arch).argmax(1) == labels
        assert row["accuracy"] == pytest.approx(float(right.float().mean()))


def test_a_new_family_is_drawn_mixed_and_scaled(space: Space) -> None:
    supernet = build_supernet(space).eval()
    images = torch.rand(6, 3, 6, 4)
    archs = [space.sample(np.random.default_rng(seed)) for seed in range(3)]
    mixed = supernet(images, archs)
    for row in range(6):
        torch.testing.assert_close(mixed[row : row + 1], supernet(images[row : row + 1], archs[row % 3]))
    scaled = scale_to_macs(space, space.smallest(), 3000)
    assert int(cost(scaled.space, [scaled])["macs"][0]) == pytest.approx(3000, rel=0.03)
