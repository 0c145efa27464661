"""The s3 family's costs against the figures of S3's paper and release."""

from __future__ import annotations

import pytest

from raynas.costs import COSTS, cost, scale_to_macs, span
from raynas.space import Space, load_arch, load_space
from tests.families.s3_spaces import S3


def test_the_papers_first_space() -> None:
    """Extremes as counted on the released network of these shapes; the largest is far below the paper's best, 28 M."""
    space = load_space("s3/initial")
    assert space.cardinality() == 12_354_965_581_365_184_409_856
    largest = {"params": 17_376_472, "macs": 18_831_453_696}
    for arch, wanted in (
        (space.smallest(), {"params": 4_889_408, "macs": 4_602_987_648}),
        (space.largest(), largest),
    ):
        computed = cost(space, [arch])
        assert {name: computed[name][0] for name in wanted} == wanted
    assert {name: span(space)[name][1] for name in largest} == largest


def test_the_span_is_exact() -> None:
    few = {"window": [1, 4], "heads": [1, 2], "query_width": [4, 10], "mlp_ratio": [1.3, 2.0]}
    stages = [{"width": [3, 25], "depth": [0, 2], "blocks": few}, {"width": [5, 17], "depth": [1], "blocks": few}]
    space = Space.from_dict({"classes": 7, **S3["s3 cyclic"], "dimensions": {"stages": stages}})
    costs = cost(space, space.encode(space.enumerate()))
    assert dict(span(space)) == {name: (costs[name].min(), costs[name].max()) for name in COSTS}


def test_scaling_keeps_heads_and_comes_near() -> None:
    arch = load_arch("s3/published/tiny")
    scaled = scale_to_macs(arch.space, arch, macs=2e9)
    assert cost(scaled.space, [scaled])["macs"][0] == pytest.approx(2e9, rel=0.02)
    kept = {name for name in arch if not name.endswith(".width")}
    assert {name: scaled[name] for name in kept} == {name: arch[name] for name in kept}
    constants = scaled.space.constants
    assert constants.attention_scale == pytest.approx(constants.head_dim**-0.5)
