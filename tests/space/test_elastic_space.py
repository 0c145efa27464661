"""Elastic spaces as choices: what they are made of, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from raynas.errors import UserError
from raynas.space import Space, load_arch
from raynas.space.elastic import Elastic, check_largest, elastic_space

NONE = Elastic(width=[], heads=[], mlp=[], dropped=0)


def vit(**changes: Any) -> Space:
    """A network of 8 blocks."""
    dimensions = {"width": [64], "depth": [8], "blocks": {"heads": [4], "mlp_ratio": [4.0]}}
    rest = {"input": {"size": 16}, "classes": 3, "constants": {"head_dim": 16}, **changes}
    return Space.from_dict({"family": "vit", "dimensions": {"patch_size": [4], **dimensions}, **rest}, "network")


def published(name: str) -> Space:
    arch = load_arch(name)
    return arch.space.fix(arch)


def may_go(space: Space) -> list[str]:
    return [dimension.name for dimension in space.dimensions if dimension.choices == (False, True)]


def test_choices_are_parts_of_the_network_and_the_last_is_the_network() -> None:
    space = elastic_space(vit(), Elastic(width=[0.3, 0.5], heads=[0.5, 1.0], mlp=[0.4], dropped=0.25))
    assert space["width"].choices == (16, 32, 64)  # multiples of 8
    assert {space[f"blocks.{i}.heads"].choices for i in range(8)} == {(2, 4)}
    assert {space[f"blocks.{i}.mlp_ratio"].choices for i in range(8)} == {(1.6, 4.0)}
    assert may_go(space) == ["blocks.4.kept", "blocks.6.kept"]
    largest = space.largest()
    assert [largest["width"], largest["blocks.0.heads"], largest["blocks.7.mlp_ratio"]] == [64, 4, 4.0]
    assert sum(largest[f"blocks.{i}.kept"] for i in range(8)) == 8
    assert sum(space.smallest()[f"blocks.{i}.kept"] for i in range(8)) == 6


def test_the_least_important_blocks_may_go_and_each_stage_keeps_one() -> None:
    order = [f"blocks.{i}" for i in (7, 0, 3, 1, 2, 4, 5, 6)]
    assert may_go(elastic_space(vit(), Elastic(dropped=0.4), order)) == [f"blocks.{i}.kept" for i in (0, 3, 7)]
    network = published("s3/published/swin_tiny")  # 2, 2, 6 and 2 blocks
    running = [d.name.removesuffix(".kept") for d in elastic_space(network, NONE).dimensions if d.name.endswith("kept")]
    assert len(running) == 12
    every = may_go(elastic_space(network, Elastic(dropped=0.99), running))
    assert [sum(name.startswith(f"stages.{stage}.") for name in every) for stage in range(4)] == [1, 1, 5, 1]
    with pytest.raises(UserError, match=r"no block 'blocks.9': its blocks are blocks.0 to blocks.7"):
        elastic_space(vit(), None, ["blocks.9"])


def test_a_network_of_its_supernets_patterns_and_ramps_has_its_own() -> None:
    network = vit(constants={"head_dim": 16, "sharing": "cyclic", "groups": 5, "drop_path_depth": 14})
    space = elastic_space(network)
    assert space.constants.sharing == "ordinal" and space.constants.groups is None
    assert space.constants.drop_path_depth == 8


def test_residual_reductions_only_add_channels() -> None:
    network = published("vit_resnas/published/vit_res_tiny")
    widths = [network[f"stages.{stage}.width"].choices[0] for stage in range(3)]
    space = elastic_space(network, Elastic(width=[0.1, 0.9]))
    for stage in (1, 2):
        assert min(space[f"stages.{stage}.width"].choices) >= widths[stage - 1]
    assert min(space["stages.0.width"].choices) < widths[0]


def test_twins_of_timms_shape_get_whole_heads() -> None:
    space = elastic_space(published("vitas/published/twins_svt_small"), Elastic(heads=[0.5]))
    assert space.constants.head_dim == 32 and not space.has("stages.0.blocks.0.query_width")
    assert space["stages.3.blocks.0.heads"].choices == (8, 16)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("autoformer/published/tiny", {}, r"heads: with qkv_bias: thirds .*: --set adapt\.elastic\.heads=\[\]$"),
        ("vitas/published/vitas_a", {}, "heads: they divide a searched query width"),
        (
            "nasvit/published/a1",
            {},
            r"width: .*; dropped: .*: --set adapt\.elastic\.width=\[\] --set adapt\.elastic\.dropped=0$",
        ),
        ("autoformer/published/deit_tiny", {"window": [0.5]}, "window: there is nothing of the kind"),
    ],
)
def test_what_cannot_be_elastic_is_refused_with_the_option_to_say(name: str, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"cannot be elastic in .*{why}"):
        elastic_space(published(name), Elastic(**options))


def test_a_space_of_several_archs_is_refused() -> None:
    with pytest.raises(UserError, match="has 2 archs"):
        elastic_space(vit().replace(dimensions=elastic_space(vit(), Elastic(width=[0.5], **REST)).dimensions))


REST: dict[str, Any] = {"heads": [], "mlp": [], "dropped": 0}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"width": [32, 96]}, "width 96, not 64"),
        ({"patch_size": [2]}, "patch_size 2, not 4"),
        ({"depth": [4, 9], "blocks": {"heads": [4], "mlp_ratio": [4.0]}}, "depth 9, not 8"),
    ],
)
def test_an_edited_space_must_have_the_network_as_its_largest(changes: dict[str, Any], said: str) -> None:
    network = vit()
    edited = {"patch_size": [4], "width": [32, 64], "depth": [4, 8], "blocks": {"heads": [2, 4], "mlp_ratio": [4.0]}}
    check_largest(vit(dimensions=edited), network)
    with pytest.raises(
        UserError, match=f"the largest arch of space network must be the network network; it has {said}"
    ):
        check_largest(vit(dimensions=edited | changes), network)
    with pytest.raises(UserError, match="pool 'mean', not 'token'"):
        check_largest(vit(dimensions=edited, constants={"head_dim": 16, "pool": "mean"}), network)
