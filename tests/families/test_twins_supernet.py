"""The twins supernet: what holds beyond the contract of every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas import build_supernet, load_space
from raynas.errors import ConfigError, UserError
from raynas.nets.supernet import Supernet
from raynas.space import Arch, Space
from tests.families.nets_spaces import make_images, make_space, make_supernet, some_archs

ONE: dict[str, list[Any]] = {"global_attention": [False], "heads": [1], "query_width": [4], "mlp_width": [6]}


def one_stage(**changes: Any) -> Space:
    """A space of one stage on 8 x 8 images."""
    definition: dict[str, Any] = {
        "family": "twins",
        "input": {"size": 8, "channels": 1},
        "classes": 3,
        "constants": {"patch_sizes": [2], "window": 2, "reductions": [2]},
        "dimensions": {"stages": [{"width": [5, 8], "depth": [0, 1, 2], "blocks": ONE}]},
    }
    return Space.from_dict({**definition, **changes})


def embedded(supernet: Supernet, images: Tensor, width: int) -> Tensor:
    """Images [batch, 1, 8, 8] as [batch, width, 4, 4] by the patch embedding alone, computed the long way."""
    state = supernet.state_dict()
    weight, bias = (state[f"stages.0.embedding.{leaf}"][:width] for leaf in ("weight", "bias"))
    x = torch.einsum("bchpwq,ocpq->bhwo", images.unflatten(2, (4, 2)).unflatten(4, (4, 2)), weight) + bias
    scale, shift = (state[f"stages.0.norm.{leaf}"][:width] for leaf in ("weight", "bias"))
    return F.layer_norm(x, (width,), scale, shift, eps=1e-5).permute(0, 3, 1, 2)


def positioned(supernet: Supernet, x: Tensor) -> Tensor:
    """[batch, width, rows, columns] with the depth-wise convolution of every channel's neighbours added."""
    width = x.shape[1]
    weight, bias = (supernet.state_dict()[f"stages.0.position.{leaf}"][:width] for leaf in ("weight", "bias"))
    padded = F.pad(x, (1, 1, 1, 1))
    around = [
        padded[:, :, i : i + x.shape[2], j : j + x.shape[3]] * weight[:, 0, i, j, None, None]
        for i in range(3)
        for j in range(3)
    ]
    return x + sum(around) + bias[:, None, None]


def classified(supernet: Supernet, x: Tensor) -> Tensor:
    """[batch, width, rows, columns] to logits."""
    state, width = supernet.state_dict(), x.shape[1]
    scale, shift = (state[f"norm.{leaf}"][:width] for leaf in ("weight", "bias"))
    x = F.layer_norm(x.permute(0, 2, 3, 1), (width,), scale, shift, eps=1e-6).mean((1, 2))
    return x @ state["head.weight"][:, :width].T + state["head.bias"]


def test_a_stage_without_a_block_is_its_patch_embedding_and_its_positions() -> None:
    space = one_stage()
    supernet, images = make_supernet(space), make_images(space, 2)
    arch = space.arch({"stages": [{"width": 5, "depth": 0}]})
    expected = classified(supernet, positioned(supernet, embedded(supernet, images, 5)))
    torch.testing.assert_close(supernet(images, arch), expected, rtol=0, atol=1e-5)
    subnet = supernet.extract(arch)
    torch.testing.assert_close(subnet(images), expected, rtol=0, atol=1e-5)
    assert {name.split(".")[0] + "." + name.split(".")[2] for name in subnet.state_dict() if "stages" in name} == {
        "stages.embedding",
        "stages.norm",
        "stages.position",
    }


def test_positions_stand_behind_the_first_block_that_runs_wherever_it_is() -> None:
    """The same block in the first or the second place is one network: one id, and one result with the same weights."""
    blocks = {"repeat": 2, "kept": [False, True], **ONE}
    space = one_stage(dimensions={"stages": [{"width": [8], "blocks": blocks}]})
    supernet, images = make_supernet(space), make_images(space, 2)
    state = supernet.state_dict()
    for name in state:
        if ".blocks.0." in name:
            state[name].copy_(state[name.replace(".blocks.0.", ".blocks.1.")])
    gene = {leaf: choices[0] for leaf, choices in ONE.items()}
    first, second = (
        space.off_grid(
            {"stages.0.width": 8}
            | {f"stages.0.blocks.{i}.kept": i == kept for i in range(2)}
            | {f"stages.0.blocks.{kept}.{leaf}": value for leaf, value in gene.items()}
        )
        for kept in range(2)
    )
    assert first != second and first.network_id == second.network_id
    torch.testing.assert_close(supernet(images, first), supernet(images, second), rtol=0, atol=0)
    assert not torch.allclose(supernet(images, first), supernet(images, space.smallest()))


def test_a_window_sees_itself_alone_and_global_attention_everything() -> None:
    """One block on a 4 x 4 grid, windows of 2 x 2: which tokens change with the first one."""
    for kind in (False, True):
        block = {**ONE, "global_attention": [kind]}
        space = one_stage(dimensions={"stages": [{"width": [8], "depth": [1], "blocks": block}]})
        attention = make_supernet(space).get_submodule(f"stages.0.blocks.0.attention.{'gsa' if kind else 'lsa'}")
        shape = make_supernet(space).acting(space.smallest())[0].blocks[0].attention  # type: ignore[operator]
        x = torch.randn(1, 16, 8)
        changed = x.clone()
        changed[0, 0] += 1
        moved = (attention(x, shape) - attention(changed, shape))[0].abs().amax(1) > 1e-6
        window = [0, 1, 4, 5]
        assert moved.nonzero().flatten().tolist() == (list(range(16)) if kind else window)


def test_both_kinds_have_attention_of_their_own_and_share_the_rest() -> None:
    space = make_space("twins")
    supernet = make_supernet(space)
    archs = {
        kind: space.arch({**space.largest(), **{n: kind for n in space.largest() if "global" in n}})
        for kind in (False, True)
    }
    touched = {}
    for kind, arch in archs.items():
        supernet.zero_grad()
        supernet(make_images(space, 2), arch).sum().backward()
        touched[kind] = {name for name, p in supernet.named_parameters() if p.grad is not None}
    assert all(".attention.lsa." in name for name in touched[False] - touched[True])
    assert all(".attention.gsa." in name for name in touched[True] - touched[False])
    assert len(touched[False] & touched[True]) == len([n for n in supernet.state_dict() if ".attention." not in n])


def test_masks_are_refused_and_auto_groups() -> None:
    space = make_space("twins")
    supernet = make_supernet(space)
    archs, images = some_archs(space, 3), make_images(space, 6)
    with pytest.raises(UserError, match="masks cannot express archs that differ in"):
        supernet(images, archs, execution="masks")
    assert torch.equal(supernet(images, archs), supernet(images, archs, execution="groups"))


def test_initialisation_is_twins() -> None:
    torch.manual_seed(0)
    space = load_space("vitas/twins_tiny").with_input(64)
    stage = space.to_dict()["dimensions"]["stages"][0]
    supernet = build_supernet(
        space.replace(
            constants=space.constants.model_copy(
                update={"patch_sizes": (4,), "reductions": (8,), "drop_path_depths": (4,)}
            ),
            dimensions=tuple(dimension for dimension in space.dimensions if dimension.name.startswith("stages.0.")),
        )
    )
    assert stage["width"][-1] == 88
    for name, parameter in supernet.named_parameters():
        if parameter.ndim == 1 or name.endswith("bias"):
            ones = ("norm" in name) and name.endswith("weight")
            assert torch.equal(parameter, torch.ones_like(parameter) * ones), name
        elif parameter.ndim == 4:
            fan_out = parameter.shape[2] ** 2 * (1 if "position" in name else parameter.shape[0])
            assert parameter.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.15), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name
    assert supernet.no_weight_decay() == {"stages.0.position.weight"}


def test_archs_that_the_supernet_does_not_hold() -> None:
    space = make_space("twins")
    supernet, images = make_supernet(space), make_images(space, 1)
    largest = dict(space.largest())

    def refused(changes: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            supernet(images, space.off_grid({**largest, **changes}))

    refused({"stages.1.width": 17}, "needs 17 channels, but the supernet has 16")
    refused({"stages.0.blocks.0.query_width": 14}, "needs 14 channels")
    refused({"stages.0.blocks.0.mlp_width": 16}, "needs 16 channels")
    with pytest.raises(ConfigError, match="cannot be cut into 2 heads"):
        space.off_grid({**largest, "stages.0.blocks.0.query_width": 7})
    with pytest.raises(UserError, match="the arch has 1 stages, the supernet 3"):
        supernet(images, one_stage().smallest())


@pytest.mark.parametrize("name", ["twins cyclic", "twins bilateral"])
def test_too_many_channels_are_an_error_with_every_pattern(name: str) -> None:
    space = make_space(name)
    supernet, images = make_supernet(space), make_images(space, 1)
    wide = space.off_grid({**space.largest(), "stages.0.width": 30})
    for side in supernet.sides:
        with pytest.raises(UserError, match="needs 30 channels"):
            supernet(images, wide, side=side)


def test_a_kind_that_is_no_choice() -> None:
    space = one_stage()
    arch: Arch = space.off_grid({**space.largest(), "stages.0.blocks.0.global_attention": True})
    with pytest.raises(UserError, match=r"chooses gsa, for which the supernet has no parameters \(it has \['lsa'\]"):
        make_supernet(space)(make_images(space, 1), arch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patch_sizes": [2, 2]}, "constants.patch_sizes: needs one value for each of the 1 stages"),
        ({"reductions": [2, 1]}, "constants.reductions: needs one value"),
        ({"drop_path_depths": [1]}, "counts 1 blocks in stage 0, which has up to 2"),
        ({"patch_sizes": [9]}, "9 is larger than the 8 x 8 image"),
        ({"window": 0}, "constants.window"),
        ({"windows": 2}, "unknown key 'windows'"),
    ],
)
def test_wrong_constants(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_stage(constants={"patch_sizes": [2], "reductions": [2], **changes})


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"width": [8], "depth": [1], "blocks": {**ONE, "heads": [1, 3]}}, "query_width 4 cannot be cut into 3 heads"),
        ({"width": [8], "depth": [1], "blocks": {**ONE, "global_attention": [0, 1]}}, "choice 0 is not true or false"),
        ({"width": [8], "depth": [1], "blocks": {**ONE, "window": [7]}}, "unknown dimension"),
        ({"depth": [1], "blocks": ONE}, "'stages.\\*.width' is missing"),
        ({"width": [8], "blocks": {"repeat": 1, **ONE}}, "'stages.\\*.depth' is missing"),
        (
            {"width": [8], "depth": [1], "blocks": {"kept": [True], **ONE}},
            "'stages.0.depth': blocks run by",
        ),
    ],
)
def test_wrong_dimensions(stage: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        one_stage(dimensions={"stages": [stage]})


def test_a_patch_larger_than_the_grid_before_it() -> None:
    with pytest.raises(ConfigError, match="3 is larger than the 2 x 2 grid of the stage before"):
        stages = [{"width": [8], "depth": [0]}] * 2
        one_stage(
            constants={"patch_sizes": [4, 3], "reductions": [1, 1]},
            dimensions={"stages": stages},
        )
