"""Exact numbers of archs, and draws that are exactly uniform over them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from raynas.space import Dimension, load_space
from raynas.space.counting import count_all, count_below, draw_weighted, shown_count
from tests.space.space_parts import toy, vit


@pytest.mark.parametrize(
    ("name", "archs"),
    [
        ("autoformer/tiny", 1_056_964_608),
        ("autoformer/tiny_ratio3", 280_804_921_344),
        ("autoformer/small", 77_103_263_459_313),
        ("autoformer/base", 10_108_977_168_384),
        ("autoformer/base_heads8", 6_245_364_340_204_353),
    ],
)
def test_autoformers_spaces(name: str, archs: int) -> None:
    assert load_space(name).cardinality() == archs


@pytest.mark.usefixtures("toy_families")
def test_identity_shifting_leaves_8191_of_3_to_the_12() -> None:
    """ViTAS: twelve blocks of two operations or none."""
    anywhere = toy("anywhere", {"blocks": {"repeat": 12, "kept": [False, True], "op": [0, 1]}})
    shifting = toy("shifting", {"depth": list(range(13)), "blocks": {"op": [0, 1]}})
    assert anywhere.cardinality() == 3**12 == 531_441
    assert shifting.cardinality() == 2**13 - 1 == 8191


def test_vitas_1_has_more_archs_than_64_bits_count() -> None:
    """3 patch sizes x 10 widths x (4 heads x 10 x 10, or identity) for 16 blocks, which the paper rounds to 1.3e43."""
    dimensions = [Dimension("patch_size", (32, 16, 14)), Dimension("width", tuple(range(1, 11)))]
    for i in range(16):
        dimensions.append(Dimension(f"blocks.{i}.kept", (False, True)))
        for gene, choices in (("heads", 4), ("qkv", 10), ("mlp_ratio", 10)):
            name = f"blocks.{i}.{gene}"
            dimensions.append(Dimension(name, tuple(range(choices)), f"blocks.{i}.kept", frozenset({True})))
    count = count_all(dimensions, count_below(dimensions))
    assert count == 30 * 401**16
    assert f"{count:.1e}" == "1.3e+43"


@pytest.mark.usefixtures("toy_families")
def test_enumerating_gives_every_arch_once() -> None:
    anywhere = toy("anywhere", {"blocks": {"repeat": 4, "kept": [False, True], "op": [0, 1]}})
    shifting = toy("shifting", {"depth": [0, 2, 5], "blocks": {"op": [0, 1, 2]}})
    for space in (anywhere, shifting, vit(), vit(depth=[2, 3])):
        archs = list(space.enumerate())
        assert len(archs) == len(set(archs)) == len({arch.id for arch in archs}) == space.cardinality()
        assert all(arch in space for arch in archs)
    assert shifting.cardinality() == 1 + 3**2 + 3**5


@pytest.mark.usefixtures("toy_families")
@pytest.mark.parametrize("family", ["shifting", "anywhere"])
def test_uniform_over_archs_is_exactly_uniform(family: str) -> None:
    blocks = {"op": [0, 1]}
    space = (
        toy("shifting", {"depth": [0, 1, 4], "blocks": blocks})
        if family == "shifting"
        else toy("anywhere", {"blocks": {"repeat": 3, "kept": [False, True], **blocks}})
    )
    codes = space.sample_codes(np.random.default_rng(7), 20_000, uniform_over="archs")
    drawn = Counter(row.tobytes() for row in codes)
    observed = [drawn[row.tobytes()] for row in space.encode(space.enumerate())]
    assert sum(observed) == 20_000  # and so nothing but archs of the space was drawn
    assert chisquare(observed).pvalue > 0.001


def test_uniform_over_dimensions_makes_every_depth_equally_likely() -> None:
    space = load_space("autoformer/tiny")
    depths = space.values(space.sample_codes(np.random.default_rng(7), 9000), "depth")
    assert chisquare([np.sum(depths == depth) for depth in (12, 13, 14)]).pvalue > 0.001
    by_arch = space.values(space.sample_codes(np.random.default_rng(7), 9000, uniform_over="archs"), "depth")
    shares = np.array([4.0**12, 4.0**13, 4.0**14])
    observed = [np.sum(by_arch == depth) for depth in (12, 13, 14)]
    assert chisquare(observed, 9000 * shares / shares.sum()).pvalue > 0.001


@pytest.mark.parametrize("scale", [1, 10**40 + 1])
def test_draws_follow_weights_of_any_size(scale: int) -> None:
    """Weights beyond 64 bits take another way, with the same distribution."""
    weights = [3 * scale, scale, 0, 6 * scale]
    drawn = draw_weighted(np.random.default_rng(3), weights, 10_000)
    observed = np.bincount(drawn, minlength=4)
    assert observed[2] == 0
    assert chisquare(observed[[0, 1, 3]], [3000, 1000, 6000]).pvalue > 0.001
    only = draw_weighted(np.random.default_rng(3), [0, 2**64, 0], 50)
    assert set(only) == {1}


def test_the_same_seed_gives_the_same_archs() -> None:
    space = load_space("autoformer/small")
    for uniform_over in ("dimensions", "archs"):
        first, second = (space.sample_codes(np.random.default_rng(5), 20, uniform_over) for _ in range(2))
        assert (first == second).all()


def test_counts_are_told_whatever_their_size() -> None:
    told = [shown_count(number) for number in (4000, 10**12, 13 * 10**42, 10**5000)]
    assert told == ["4,000", "1.00e12", "1.30e43", "1.00e5000"]
