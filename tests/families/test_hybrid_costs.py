"""The hybrid family's costs against counts of the released NASViT and AlphaNet code."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from raynas.costs import COSTS, cost, scale_to_macs, span
from raynas.nets import build_supernet
from raynas.space import Space, load_arch, load_space
from raynas.space.load import SPACES
from tests.families.hybrid_spaces import HYBRID
from tests.families.nasvit_golden import DATA, arch_of

MEASURED: dict[str, Any] = json.loads((DATA / "nasvit_costs.json").read_text())


def space_of(name: str) -> Space:
    return Space.from_dict({"classes": 7, **HYBRID[name]}, name)


def test_without_factors() -> None:
    definition = {"classes": 7, **HYBRID["hybrid"]}
    plain = Space.from_dict({**definition, "constants": {**definition["constants"], "scaling": "none"}})
    arch = plain.largest()
    with torch.device("meta"):
        subnet = build_supernet(plain.fix(arch))
    assert cost(plain, [arch])["params"][0] == sum(parameter.numel() for parameter in subnet.parameters())


@pytest.mark.parametrize(
    ("name", "archs"),
    [("nasvit/released", 48_157_949_952), ("nasvit/paper", 293_534_171_136), ("alphanet/cnn", 440_301_256_704)],
)
def test_cardinalities(name: str, archs: int) -> None:
    assert load_space(name).cardinality() == archs


def test_nasvit_as_its_released_code_counts() -> None:
    """Smallest and largest, ten random networks, and the paper's Table 13 as far as it can be read."""
    space = load_space("nasvit/released")
    listed = [*MEASURED["extremes"], *MEASURED["random"], *MEASURED["table13"].values()]
    archs = [arch_of(each["config"], space) for each in listed]
    assert archs[:2] == [space.smallest(), space.largest()] and len(archs) == 16
    computed = cost(space, archs)
    assert computed["macs"].tolist() == [each["macs"] for each in listed]
    assert computed["params"].tolist() == [each["params"] for each in listed]
    extremes = {name: tuple(computed[name][:2].tolist()) for name in COSTS}
    assert span(space) == extremes


def test_nasvit_with_one_knob_turned() -> None:
    space, smallest = load_space("nasvit/released"), MEASURED["extremes"][0]["config"]
    archs, macs = [], []
    for knob, count in MEASURED["one_knob"].items():
        parsed = re.fullmatch(r"(\w+?)(?:\[(\d)\])?=(\d+)", knob)
        assert parsed
        config = json.loads(json.dumps(smallest))
        if parsed[2]:
            config[parsed[1]][int(parsed[2])] = int(parsed[3])
        else:
            config[parsed[1]] = int(parsed[3])
        archs.append(arch_of(config, space))
        macs.append(count)
    assert len(archs) == 80 and cost(space, archs)["macs"].tolist() == macs


def test_alphanet_as_its_released_code_counts() -> None:
    """Its static networks hold a convolution for every shortcut, also where the width is kept: ours do not."""
    space = load_space("alphanet/cnn")
    listed = MEASURED["alphanet"]
    archs = {name: arch_of(each["config"], space) for name, each in listed.items()}
    computed = cost(space, archs.values())
    assert computed["macs"].tolist() == [round(each["macs_M"] * 1e6) for each in listed.values()]
    for params, arch, each in zip(computed["params"], archs.values(), listed.values(), strict=True):
        idle, before = 0, arch["stem.width"]
        for stage in range(7):
            width, depth = arch[f"stages.{stage}.width"], arch[f"stages.{stage}.depth"]
            idle += (depth - 1 + (width == before)) * width**2
            before = width
        assert params + idle == each["static_params"]
    assert archs["smallest"] == space.smallest() and archs["largest"] == space.largest()


@pytest.mark.parametrize("system", ["nasvit", "alphanet"])
def test_published_files_are_the_measured_networks(system: str) -> None:
    for path in (SPACES / system / "published").glob("*.yaml"):
        arch = load_arch(path)
        measured = MEASURED["table13"].get(path.stem.upper()) if system == "nasvit" else MEASURED["alphanet"][path.stem]
        assert arch == arch_of(measured["config"], arch.space)


@pytest.mark.parametrize("name", ["hybrid", "hybrid cyclic"])
def test_the_span_is_exact(name: str) -> None:
    space = space_of(name)
    costs = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))
    for key in COSTS:
        assert span(space)[key][0] <= costs[key].min() and costs[key].max() <= span(space)[key][1]
    assert span(space)["macs"] == tuple(cost(space, [space.smallest(), space.largest()])["macs"].tolist())


def test_scaling_keeps_whole_heads_and_comes_near() -> None:
    arch = load_space("nasvit/released").smallest()
    scaled = scale_to_macs(arch.space, arch, macs=4e8)
    assert cost(scaled.space, [scaled])["macs"][0] == pytest.approx(4e8, rel=0.03)
    assert all(scaled[f"stages.{stage}.width"] % 8 == 0 for stage in range(3, 7))
    assert scaled["resolution"] == 192 and scaled["stages.6.depth"] == 3
