"""Costs against published and measured numbers, and against counting through small spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raynas.costs import COSTS, breakdown, cost, span
from raynas.costs.cost import counted
from raynas.errors import UserError
from raynas.space import Arch, Space, load_arch, load_space
from tests.space.space_parts import vit

AUTOFORMER = [
    # space, arch, parameters, multiply-accumulates executed by the released code
    ("tiny", "smallest", 5_366_056, 1_345_368_576),
    ("tiny", "published", 5_867_944, 1_481_938_432),
    ("tiny", "largest", 10_517_272, 2_541_425_024),
    ("tiny_ratio3", "smallest", 4_922_536, 1_258_222_080),
    ("tiny_ratio3", "largest", 10_517_272, 2_541_425_024),
    ("small", "smallest", 13_057_320, 3_065_331_200),
    ("small", "published", 22_891_432, 5_161_400_832),
    ("small", "largest", 34_790_440, 7_684_024_320),
    ("base", "smallest", 41_687_896, 9_300_287_616),
    ("base", "published", 53_691_688, 11_691_179_008),
    ("base", "largest", 76_882_264, 16_537_806_208),
    ("base_heads8", "smallest", 39_792_856, 8_788_402_816),
]


def arch_of(name: str, which: str) -> Arch:
    if which == "published":
        return load_arch(f"autoformer/published/{name}")
    space = load_space(f"autoformer/{name}")
    return space.smallest() if which == "smallest" else space.largest()


@pytest.mark.parametrize(
    "name", ["autoformer/base", "nasvit/released", "s3/initial", "vit_resnas/tiny", "vitas/twins_small"]
)
def test_a_space_of_one_arch_costs_what_the_arch_does(name: str) -> None:
    """However many dimensions have a single choice: a numpy array has 64 axes at most."""
    arch = load_space(name).largest()
    alone = arch.space.fix(arch)
    expected, found = cost(arch.space, [arch]), cost(alone, [alone.smallest()])
    assert {key: found[key].tolist() for key in found} == {key: expected[key].tolist() for key in expected}


@pytest.mark.parametrize(("name", "which", "params", "macs"), AUTOFORMER)
def test_autoformer_to_the_unit(name: str, which: str, params: int, macs: int) -> None:
    """Parameters and the paper's way of computing, as measured on the released code."""
    arch = arch_of(name, which)
    computed = cost(arch.space, [arch])
    assert computed["params"].tolist() == [params] and computed["paper_macs"].tolist() == [macs]
    assert computed["macs"][0] < macs  # relative position without a tensor of [tokens, tokens, head_dim]


@pytest.mark.parametrize(
    ("values", "params", "macs"),
    [
        ((2, 96, [2, 2], [2, 2]), 211_114, 3_516_352),
        ((3, 192, [3, 3, 3], [4, 4, 4]), 1_400_458, 23_818_368),
        ((3, 144, [2, 3, 2], [3, 2, 4]), 691_690, 11_693_728),
        ((2, 192, [3, 2], [4, 3]), 824_650, 13_913_216),
    ],
)
def test_a_small_autoformer_to_the_unit(values: tuple[Any, ...], params: int, macs: int) -> None:
    """32 x 32 images, patch 8: the tables are longer than the grid."""
    depth, width, heads, ratios = values
    space = load_space("autoformer/tiny").with_input(size=32, classes=10)
    blocks = {"heads": heads, "mlp_ratio": ratios}
    arch = space.off_grid({"patch_size": 8, "width": width, "depth": depth, "blocks": blocks})
    computed = cost(arch.space, [arch])
    assert computed["params"][0] == params and computed["paper_macs"][0] == macs


def test_the_parts_add_up() -> None:
    arch = load_arch("autoformer/published/small")
    rows = breakdown(arch.space, arch)
    total = cost(arch.space, [arch])
    assert {name: sum(row[name] for row in rows) for name in COSTS} == {name: total[name][0] for name in COSTS}
    named = {row["term"]: row for row in rows}
    assert len(named) == len(rows) == 3 + 2 * 13 and "blocks.13.mlp" not in named
    # Measured on the released code: patch convolution, classifier, MLPs of all blocks, query-key-value and projection.
    assert named["patch_embedding"]["macs"] == 57_802_752 and named["head"]["macs"] == 384_000
    assert sum(named[f"blocks.{i}.mlp"]["macs"] for i in range(13)) == 2_817_736_704
    attention = 1_132_904_448 + 377_634_816 + 4 * 193_734_528
    assert sum(named[f"blocks.{i}.attention"]["paper_macs"] for i in range(13)) == attention


@pytest.mark.parametrize(
    "name", ["autoformer/small", "vitas/v1", "vitas/twins_small", "s3/initial", "vit_resnas/small", "nasvit/released"]
)
def test_many_archs_cost_the_sum_of_their_terms(name: str) -> None:
    """Many archs are looked up in tables of the terms; the terms of one arch are computed from its choices."""
    space = load_space(name)
    codes = space.sample_codes(np.random.default_rng(0), 5000)
    together = cost(space, codes)
    for row in (*range(0, 5000, 499), 4096, 4999):
        alone = [counts for _, counts in counted(space, codes[row : row + 1])]
        assert [sum(int(each[i][0]) for each in alone) for i in range(3)] == [together[name][row] for name in COSTS]


def test_a_term_of_too_many_choices_for_a_table_is_computed() -> None:
    heads = list(range(1, 301))
    space = vit(patch_size=[8], width=list(range(8, 2408, 8)), blocks={"heads": heads, "mlp_ratio": [1.0]})
    codes = space.sample_codes(np.random.default_rng(0), 50)
    together = cost(space, codes)
    for row, arch in enumerate(space.decode(codes)):
        fixed = space.fix(arch)  # of one choice each
        assert all(cost(fixed, [fixed.smallest()])[name][0] == together[name][row] for name in COSTS)


def test_a_hundred_thousand_archs_of_the_largest_space() -> None:
    space = load_space("autoformer/base")
    codes = space.sample_codes(np.random.default_rng(0), 100_000)
    costs = cost(space, codes)
    assert all(costs[name].dtype == np.int64 and costs[name].shape == (100_000,) for name in COSTS)
    low, high = span(space)["params"]
    assert low <= costs["params"].min() and costs["params"].max() <= high


@pytest.mark.parametrize(
    "space",
    [
        vit(),
        vit(patch_size=[16, 8, 4, 2], width=[4, 40]),  # a finer patch has fewer weights, but more positions
        vit(depth=[2], blocks=[{"heads": [1, 3], "mlp_ratio": [1]}, {"heads": [2], "mlp_ratio": [0.5, 4]}]),
    ],
)
def test_the_span_is_exact(space: Space) -> None:
    costs = cost(space, space.encode(space.enumerate()))
    assert dict(span(space)) == {name: (costs[name].min(), costs[name].max()) for name in COSTS}


def test_the_span_of_patch_sizes_is_not_that_of_the_extremes() -> None:
    space = vit(patch_size=[16, 8, 4, 2], width=[4, 40])
    extremes = cost(space, [space.smallest(), space.largest()])["params"]
    assert span(space)["params"][0] < extremes[0]


def test_codes_with_idle_genes_cost_the_same() -> None:
    space = vit()
    codes = space.encode([space.smallest()])
    idle = np.where(codes < 0, 1, codes).astype(np.int16)
    assert cost(space, idle) == cost(space, codes)


def test_wrong_archs() -> None:
    space = vit()
    with pytest.raises(UserError, match=r"give a list, cost\(space, \[arch\]\)"):
        cost(space, space.smallest())  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"codes of vit are \[n, 9\], found \[3, 4\]"):
        cost(space, np.zeros((3, 4), dtype=np.int16))
    with pytest.raises(UserError, match=r"has no 'blocks.3.heads'"):
        cost(space, [dict(load_space("autoformer/tiny").smallest())])  # type: ignore[list-item]
    assert cost(space, [])["macs"].shape == (0,)
