"""Checkpoints in the released layout: every subnet against the long way, and what cannot be read."""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raynas import load_space
from raynas.errors import UserError
from raynas.families.vit.checkpoint import read_released
from raynas.nets.weights import load_supernet
from raynas.space import Space
from raynas.space.rules import hidden_width
from tests.families.nets_spaces import make_images, some_archs
from tests.families.released import released_forward, released_state


def make_case(head_dim: int, distance: int, widths: list[int]) -> tuple[Space, dict[str, Tensor]]:
    """A space of three heads at most, and a checkpoint allocated 3 * head_dim wide, as the release allocates."""
    constants = {
        "head_dim": head_dim,
        "pool": "mean",
        "relative_position": distance,
        "qkv_bias": "thirds",
        "norm_eps": 1e-5,
    }
    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 20, "channels": 3},
            "classes": 6,
            "constants": constants,
            "dimensions": {
                "patch_size": [4],
                "width": widths,
                "depth": [1, 2, 3],
                "blocks": {"heads": [1, 2, 3], "mlp_ratio": [1.5, 2.0]},
            },
        }
    )
    allocated = 3 * head_dim
    return space, released_state(allocated, 3, 3, head_dim, 2 * allocated, 4, 5, 6, distance)


@pytest.mark.parametrize(
    ("head_dim", "distance", "widths"), [(8, 2, [10, 15, 20]), (32, 14, [40, 96]), (64, 3, [100, 111])]
)
def test_every_subnet_computes_what_the_release_computes(head_dim: int, distance: int, widths: list[int]) -> None:
    space, state = make_case(head_dim, distance, widths)
    supernet = load_supernet(*read_released(state, space)).eval().double()
    images = make_images(space, 2).double()
    exact = {name: value.double() for name, value in state.items()}
    for arch in some_archs(space, 12):
        blocks = range(int(arch["depth"]))
        expected = released_forward(
            exact,
            images,
            int(arch["width"]),
            [int(arch[f"blocks.{i}.heads"]) for i in blocks],
            [hidden_width(arch["width"], arch[f"blocks.{i}.mlp_ratio"]) for i in blocks],
            head_dim,
            distance,
        )
        torch.testing.assert_close(supernet(images, arch), expected, rtol=0, atol=1e-10)


def test_a_space_with_fewer_heads_and_blocks_than_the_checkpoint_takes_a_prefix() -> None:
    space, state = make_case(8, 2, [10, 15, 20])
    arch = space.smallest()
    one = space.fix(arch)
    images = make_images(space, 2)
    whole, part = (load_supernet(*read_released(state, s)).eval() for s in (space, one))
    torch.testing.assert_close(part(images), whole(images, arch), rtol=0, atol=1e-6)


def test_the_released_space_is_recognised_by_its_size() -> None:
    shapes = released_state(1, 0, 1, 1, 1, 16, 4, 7, 1) | released_state(256, 14, 4, 64, 1024, 16, 4, 7, 14)
    space, state = read_released({"model": shapes})
    expected = load_space("autoformer/tiny").with_input(64, 3, 7)
    assert space == expected
    assert state["blocks.13.qkv.weight"].shape == (768, 240)  # 256 allocated, 240 the widest choice


def test_a_file_as_released_is_read_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    space, state = make_case(8, 2, [10])
    torch.save({"model": state, "args": argparse.Namespace(lr=1e-3), "epoch": 3}, tmp_path / "good.pth")
    _, read = read_released(tmp_path / "good.pth", space)
    assert torch.equal(read["head.weight"], state["head.weight"][:, :10])

    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    torch.save({"model": state, "args": Evil()}, tmp_path / "evil_too.pth")
    (tmp_path / "text.pth").write_text("no checkpoint at all")
    (tmp_path / "empty.pth").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"model": {"a": 1}}, tmp_path / "numbers.pth")
    for name in ("evil", "evil_too", "text", "empty", "list", "numbers", "missing"):
        with pytest.raises(UserError):
            read_released(tmp_path / f"{name}.pth", space)
    assert not Evil.ran
    with pytest.raises(UserError):
        read_released(tmp_path, space)


class Evil:
    """What runs code when it is unpickled."""

    ran = False

    def __reduce__(self) -> tuple[Callable[..., None], tuple[type, str, bool]]:
        return setattr, (Evil, "ran", True)


def test_what_does_not_fit_is_named() -> None:
    space, state = make_case(8, 2, [10])
    changes: list[tuple[dict[str, Tensor | None], Space | None, str]] = [
        ({"norm.bias": None}, space, "lacks 'norm.bias'"),
        ({"cls_token_2": torch.zeros(1)}, space, "'cls_token_2', for which space"),
        ({"head.weight": torch.zeros(5, 24)}, space, r"head.weight is \[5, 24\].*needs \[6, 10 or more\]"),
        ({"blocks.1.fc1.weight": torch.zeros(19, 24)}, space, r"needs \[20 or more, 10 or more\]"),
        ({"blocks.0.attn.qkv.weight": torch.zeros(72)}, space, "attn.qkv.weight is"),
        ({"pos_embed": torch.zeros(1, 17, 24)}, space, "pos_embed is"),
        ({}, None, "say which space"),
        ({"pos_embed": None}, None, "lacks 'pos_embed'"),
        ({}, load_space("digits/vit"), "qkv_bias: thirds"),
    ]
    for change, wanted, message in changes:
        broken = {name: value for name, value in (state | change).items() if value is not None}
        with pytest.raises(UserError, match=message):
            read_released(broken, wanted)
    with pytest.raises(UserError, match="one patch size"):
        two = space.to_dict()
        two["dimensions"]["patch_size"] = [5, 4]
        read_released(state, Space.from_dict(two))
    without = space.to_dict()
    without["constants"]["relative_position"] = None
    with pytest.raises(UserError, match="rel_pos_embed"):
        read_released(state, Space.from_dict(without))
