"""The twins family's costs against the reference counts of ViTAS's spaces."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest

from raynas.costs import COSTS, cost, scale_to_macs, span
from raynas.space import Arch, Space, load_arch, load_space
from tests.families.twins_spaces import TWINS


def space_of(name: str, **dimensions: Any) -> Space:
    definition = {"classes": 7, **TWINS[name]}
    return Space.from_dict({**definition, "dimensions": {**definition["dimensions"], **dimensions}}, name)


def extreme(space: Space, depths: tuple[int, ...], kinds: str, choice: int) -> Arch:
    """The arch of every first (0) or last (-1) width, with a repeated pattern of local (L) and global (G) blocks."""
    values = {dimension.name: dimension.choices[choice] for dimension in space.dimensions}
    for stage, depth in enumerate(depths):
        values[f"stages.{stage}.depth"] = depth
        for block in range(depth):
            values[f"stages.{stage}.blocks.{block}.global_attention"] = kinds[block % len(kinds)] == "G"
    return space.arch(values)


@pytest.mark.parametrize(
    ("size", "depths", "kinds", "choice", "params", "macs"),
    [
        ("small", (4, 4, 12, 6), "L", -1, 130_943_976, 17_701_862_400 + 479_431_680),
        ("small", (4, 4, 12, 6), "G", -1, 151_938_536, 16_585_948_160 + 479_431_680),
        ("small", (4, 4, 12, 6), "LG", -1, 141_441_256, 17_143_905_280 + 479_431_680),
        ("small", (2, 2, 10, 4), "LG", -1, 102_031_400, 11_989_425_152 + 295_034_880),
        ("small", (1, 1, 1, 1), "L", 0, 317_048, 32_712_970 + 9_219_840),
        ("small", (0, 0, 0, 0), "L", 0, 133_788, 5_863_322),
        ("base", (4, 4, 20, 4), "L", -1, 257_081_512, 42_660_493_824 + 565_483_520),
        ("base", (4, 4, 20, 4), "G", -1, 323_194_792, 41_526_114_816 + 565_483_520),
        ("base", (4, 4, 20, 4), "LG", -1, 290_138_152, 42_093_304_320 + 565_483_520),
        ("base", (1, 1, 1, 1), "L", 0, 581_248, 63_143_206 + 9_219_840),
        ("large", (4, 4, 20, 4), "L", -1, 521_334_760, 86_783_948_800 + 1_130_967_040),
        ("large", (4, 4, 20, 4), "G", -1, 638_845_928, 80_881_645_568 + 1_130_967_040),
        ("large", (4, 4, 20, 4), "LG", -1, 580_090_344, 83_832_797_184 + 1_130_967_040),
        ("large", (0, 0, 0, 0), "L", 0, 322_402, 17_817_805),
    ],
)
def test_the_extremes_of_vitas_spaces(
    size: str, depths: tuple[int, ...], kinds: str, choice: int, params: int, macs: int
) -> None:
    """Counted on networks of these shapes, linear layers and convolutions apart from the products of attention."""
    space = load_space(f"vitas/twins_{size}")
    computed = cost(space, [extreme(space, depths, kinds, choice)])
    assert (computed["params"][0], computed["macs"][0]) == (params, macs)


def test_vitas_twins_t() -> None:
    arch = load_arch("vitas/published/twins_t")
    computed = cost(arch.space, [arch])
    assert (computed["params"][0], computed["macs"][0]) == (11_501_456, 1_411_893_824)


def test_the_baseline_of_the_small_space_is_one_of_its_networks() -> None:
    assert load_arch("vitas/published/twins_svt_small") in load_space("vitas/twins_small")
    for size in ("base", "large"):
        assert load_arch(f"vitas/published/twins_svt_{size}") not in load_space(f"vitas/twins_{size}")


@pytest.mark.parametrize(
    ("size", "depths", "largest"),
    [
        ("tiny", (4, 4, 12, 6), ((88, 160, 352), (176, 320, 704), (352, 640, 1408), (704, 1280, 2816))),
        ("small", (4, 4, 12, 6), ((128, 160, 512), (256, 320, 1024), (512, 640, 2048), (1024, 1280, 4096))),
        ("base", (4, 4, 20, 4), ((192, 160, 768), (384, 320, 1536), (768, 640, 3072), (1536, 1280, 6144))),
        ("large", (4, 4, 20, 4), ((256, 320, 1024), (512, 640, 2048), (1024, 1280, 4096), (2048, 2560, 8192))),
    ],
)
def test_vitas_spaces_are_the_papers(
    size: str, depths: tuple[int, ...], largest: tuple[tuple[int, int, int], ...]
) -> None:
    space = load_space(f"vitas/twins_{size}")
    for stage, (depth, widths) in enumerate(zip(depths, largest, strict=True)):
        here = f"stages.{stage}"
        assert space[f"{here}.depth"].choices == tuple(range(depth + 1))
        for block in range(depth):
            leaves = ("width", f"blocks.{block}.query_width", f"blocks.{block}.mlp_width")
            for leaf, most in zip(leaves, widths, strict=True):
                assert space[f"{here}.{leaf}"].choices == tuple(round(most * tenths / 10) for tenths in range(1, 11))
            assert space[f"{here}.blocks.{block}.heads"].choices == (2, 4, 8, 16)
    assert space.cardinality() == 10**4 * math.prod(sum(800**d for d in range(depth + 1)) for depth in depths)


def test_identity_shifting_counts_operations_as_in_the_paper() -> None:
    """31 x 31 x 8191 x 127: every depth, and one of two kinds of attention in each block."""
    tree = load_space("vitas/twins_small").to_dict()
    for stage in tree["dimensions"]["stages"]:
        stage["width"] = stage["width"][-1:]
        for leaf in ("heads", "query_width", "mlp_width"):
            stage["blocks"][leaf] = stage["blocks"][leaf][-1:]
    assert Space.from_dict(tree).cardinality() == 999_686_977


def test_the_span_is_exact() -> None:
    few = {"global_attention": [False, True], "heads": [1, 2], "query_width": [4, 12], "mlp_width": [7, 15]}
    stages = [{"width": [6, 14], "depth": [0, 1], "blocks": few}, {"width": [5, 8, 17], "depth": [1, 2], "blocks": few}]
    space = space_of("twins cyclic", stages=stages)
    costs = cost(space, space.encode(space.enumerate()))
    assert dict(span(space)) == {name: (costs[name].min(), costs[name].max()) for name in COSTS}
    anywhere = space_of("twins kept anywhere")
    costs = cost(anywhere, anywhere.sample_codes(np.random.default_rng(0), 20_000))
    low, high = span(anywhere)["params"]
    assert low == cost(anywhere, [anywhere.smallest()])["params"][0] and costs["params"].max() <= high


def test_the_span_of_a_whole_vitas_space_is_found_at_once() -> None:
    space = load_space("vitas/twins_small")
    found = span(space)
    archs = [extreme(space, (4, 4, 12, 6), kinds, -1) for kinds in ("L", "G")]
    archs += [extreme(space, (0, 0, 0, 0), "L", 0)]
    params, macs = (cost(space, archs)[name] for name in ("params", "macs"))
    assert found["params"] == (params.min(), params.max()) and found["macs"][0] == macs.min()
    # A block's kinds do not depend on each other: per stage, the dearer kind at every block.
    assert found["macs"][1] >= macs.max()


def test_scaling_keeps_heads_and_comes_near() -> None:
    arch = load_arch("vitas/published/twins_svt_small")
    scaled = scale_to_macs(arch.space, arch, macs=1.4e9)
    assert cost(scaled.space, [scaled])["macs"][0] == pytest.approx(1.4e9, rel=0.02)
    for stage, block in product(range(4), range(2)):
        heads, query = (scaled[f"stages.{stage}.blocks.{block}.{leaf}"] for leaf in ("heads", "query_width"))
        assert heads == arch[f"stages.{stage}.blocks.{block}.heads"] and query % heads == 0
