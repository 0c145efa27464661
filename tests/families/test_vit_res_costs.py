"""The vit_res family's costs against counts of the released ViT-ResNAS code's networks."""

from __future__ import annotations

import json
from math import prod
from typing import Any

import numpy as np
import pytest
import yaml

from raynas.costs import COSTS, cost, scale_to_macs, span
from raynas.space import Space, load_arch, load_space
from raynas.space.load import SPACES
from tests.families.resnas_golden import DATA, arch_of
from tests.families.vit_res_spaces import VIT_RES


def space_of(name: str) -> Space:
    return Space.from_dict({"classes": 7, **VIT_RES[name]}, name)


@pytest.mark.parametrize(
    ("which", "size", "macs", "params", "without_token_head"),
    [
        ("published/vit_res_tiny", 224, 1_794_378_240, 42_781_736, 42_012_736),
        ("published/tiny", 224, 1_782_630_272, 41_498_552, 40_793_552),
        ("published/small", 224, 2_845_501_856, 64_605_108, 63_724_108),
        ("published/medium", 224, 4_513_135_936, 97_323_672, 96_442_672),
        ("published/medium", 280, 7_219_069_888, 97_389_192, 96_508_192),
        ("published/medium", 336, 10_739_099_456, 97_469_272, 96_588_272),
        ("published/medium", 392, 15_200_890_816, 97_563_912, 96_682_912),
        ("tiny smallest", 224, 752_489_984, 16_133_576, 15_492_576),
        ("tiny largest", 224, 3_497_553_920, 85_839_464, 84_814_464),
        ("small smallest", 224, 1_470_482_304, 33_910_160, 33_109_160),
        ("small largest", 224, 6_260_342_784, 156_599_528, 155_318_528),
    ],
)
def test_the_released_networks(which: str, size: int, macs: int, params: int, without_token_head: int) -> None:
    """Counted on the released code's networks by hooks, and by torch."""
    name, _, extreme = which.partition(" ")
    arch = getattr(load_space(f"vit_resnas/{name}"), extreme)() if extreme else load_arch(f"vit_resnas/{name}")
    space = arch.space.with_input(size)
    computed = cost(space, [space.arch(arch)])
    assert (computed["macs"][0], computed["params"][0]) == (macs, params)
    bare = space.replace(constants=space.constants.model_copy(update={"token_head": False}))
    assert cost(bare, [bare.arch(arch)])["params"][0] == without_token_head


def test_random_networks_of_the_release() -> None:
    networks = json.loads((DATA / "resnas_macs_random_networks.json").read_text())
    for name in ("tiny", "small"):
        space = load_space(f"vit_resnas/{name}")
        listed = [network for network in networks if network["space"] == name]
        computed = cost(space, [arch_of(network["network"], space) for network in listed])
        assert computed["macs"].tolist() == [network["macs_official_224"] for network in listed]
        assert len(listed) >= 10
        for network, params in zip(listed, computed["params"], strict=True):
            assert network.get("params_with_patch_head", params) == params


def test_published_files_tell_the_token_heads_parameters() -> None:
    for path in (SPACES / "vit_resnas" / "published").glob("*.yaml"):
        published, arch = yaml.safe_load(path.read_text())["published"], load_arch(path)
        token_head = 1000 * (arch["stages.2.width"] + 1)
        assert published["params"] - published["params_without_token_head"] == token_head


@pytest.mark.parametrize(
    ("name", "archs", "with_idle_genes", "networks"),
    [
        ("tiny", 19182900589423791619538944000, 7161838742924362129076125696000, 15600382939320524140544000000),
        (
            "small",
            421103033739031073632118898688000,
            157216684084675597457479111278592000,
            342459606283964145933221888000000,
        ),
    ],
)
def test_three_ways_to_count_a_space(name: str, archs: int, with_idle_genes: int, networks: int) -> None:
    """A dropped block counts once; once for each thing it could have been; or not at all, whichever it is."""
    space = load_space(f"vit_resnas/{name}")
    assert space.cardinality() == archs
    assert prod(len(dimension.choices) for dimension in space.dimensions) == with_idle_genes
    always = 3 if name == "tiny" else 4
    assert (5 * sum(28 ** (always + more) for more in range(4))) ** 3 == networks


def test_networks_are_told_apart_by_their_id() -> None:
    """Two pairs of blocks of 2 x 1 choices: 2^2 (1 + 2)^2 archs, and as many networks as lists of 2 to 4 blocks."""
    block = {"heads": [1], "mlp_width": [4, 6]}
    pair = [{"kept": [True], **block}, {"kept": [False, True], **block}]
    definition: dict[str, Any] = {
        "family": "vit_res",
        "input": {"size": 14},
        "classes": 2,
        "constants": {"head_dims": [4]},
        "dimensions": {"stages": [{"width": [4], "blocks": [*pair, *pair]}]},
    }
    archs = list(Space.from_dict(definition).enumerate())
    assert len(archs) == 36 and len({arch.network_id for arch in archs}) == 2**2 + 2**3 + 2**4


def test_the_span_is_exact_where_archs_can_be_counted_through() -> None:
    space = space_of("vit_res cyclic")
    costs = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))
    for name in COSTS:
        low, high = span(space)[name]
        assert (low, high) == (
            cost(space, [space.smallest()])[name][0],
            cost(space, [space.largest()])[name][0],
        )
        assert low <= costs[name].min() and costs[name].max() <= high


def test_scaling_keeps_heads_and_comes_near() -> None:
    arch = load_arch("vit_resnas/published/vit_res_tiny")
    scaled = scale_to_macs(arch.space, arch, macs=2.9e9)
    assert cost(scaled.space, [scaled])["macs"][0] == pytest.approx(2.9e9, rel=0.02)
    head_dims, scales = scaled.space.constants.head_dims, scaled.space.constants.attention_scale
    assert all(dim > 64 for dim in head_dims) and scales == pytest.approx([dim**-0.5 for dim in head_dims])
    assert [scaled[f"stages.{stage}.blocks.0.heads"] for stage in range(3)] == [3, 6, 12]
