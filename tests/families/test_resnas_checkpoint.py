"""ViT-ResNAS's released checkpoints: recognised by their shapes, read whole, and refused with a reason."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch
from torch import Tensor

from raynas.errors import UserError
from raynas.families.vit_res.checkpoint import read_released
from raynas.nets.weights import load_supernet
from raynas.space import Space, load_arch, load_space
from tests.families.resnas_golden import golden, golden_space

ABOUT, _, WEIGHTS = golden()
SPACE = golden_space(ABOUT)


def released_shapes(space: Space, size: int, classes: int, gaps: bool = False) -> dict[str, Tensor]:
    """A checkpoint of a network's shapes without memory, by the release's numbering of blocks.

    Args:
        gaps: leave out a number for every block that is not there.
    """
    shapes: dict[str, tuple[int, ...]] = {"patch_head.weight": (), "cls_head.weight": ()}
    block = 0

    def norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def affine(name: str, *shape: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": shape, f"{name}.bias": shape[:1]}

    arch, side, before = space.largest(), size // 14, 0
    for unit, channels in (("conv1", 3), ("conv2", 24), ("conv3", 24)):
        shapes |= norm(f"patch_embed.{unit}.bn", 24)
        shapes |= {f"patch_embed.{unit}.conv.weight": (24, channels, 3, 3)}
        shapes |= {f"patch_embed.{unit}.bn.running_{which}": (24,) for which in ("mean", "var")}
        shapes |= {f"patch_embed.{unit}.bn.num_batches_tracked": ()}
    for stage, head_dim in enumerate(space.constants.head_dims):
        width = arch[f"stages.{stage}.width"]
        if stage == 0:
            shapes |= affine("patch_embed.conv_proj", width, 24, 7, 7)
            shapes |= {"tokens": (1, 1, width), "pos_embed": (1, 1 + side**2, width)}
        else:
            side //= 2
            shapes |= norm(f"blocks.{block}.norm", before)
            shapes |= affine(f"blocks.{block}.patch_reduce", width, before, 3, 3)
            shapes |= affine(f"blocks.{block}.token_transform", width, before)
            shapes |= {f"blocks.{block}.pos_embed": (1, side**2, width)}
            block += 1
        places = {name.split(".")[3] for name in arch if name.startswith(f"stages.{stage}.blocks.")}
        for place in range(len(places)):
            if f"stages.{stage}.blocks.{place}.heads" not in arch:
                block += gaps
                continue
            here, heads = f"blocks.{block}", arch[f"stages.{stage}.blocks.{place}.heads"] * head_dim
            hidden = arch[f"stages.{stage}.blocks.{place}.mlp_width"]
            shapes |= norm(f"{here}.norm1", width) | norm(f"{here}.norm2", width)
            shapes |= affine(f"{here}.attn.qkv", 3 * heads, width) | affine(f"{here}.attn.proj", width, heads)
            shapes |= affine(f"{here}.mlp.fc1", hidden, width) | affine(f"{here}.mlp.fc2", width, hidden)
            block += 1
        before = width
    shapes |= norm("norm", before) | affine("cls_head", classes, before) | affine("patch_head", classes, before)
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_a_released_supernet_is_recognised(name: str) -> None:
    space = load_space(f"vit_resnas/{name}")
    found, weights = read_released({"model": released_shapes(space, 224, 1000), "epoch": 119})
    assert found == space and found.name == f"vit_resnas/{name}"
    assert len(weights) == len(released_shapes(space, 224, 1000))


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", ["vit_res_tiny", "tiny", "small", "medium"])
def test_a_released_network_is_recognised_however_its_blocks_are_numbered(name: str, gaps: bool) -> None:
    arch = load_arch(f"vit_resnas/published/{name}")
    alone = arch.space.fix(arch)
    found, weights = read_released({"model": released_shapes(alone, 280, 5, gaps)})
    assert found == alone.with_input(280, 3, 5)
    assert weights["embedding.position"].shape == (1, 401, arch["stages.0.width"])


def test_a_file_as_released_and_its_averaged_weights() -> None:
    _, raw = read_released(WEIGHTS, SPACE)
    averaged = {name: tensor + 1 for name, tensor in WEIGHTS.items()}
    _, read = read_released({"model": WEIGHTS, "model_ema": averaged}, SPACE)
    assert torch.equal(read["norm.weight"], raw["norm.weight"] + 1)
    _, read = read_released({"model": WEIGHTS, "model_ema": None}, SPACE)
    assert torch.equal(read["norm.weight"], raw["norm.weight"])
    wrapped = {f"module.{name}": tensor for name, tensor in WEIGHTS.items()}  # saved inside DataParallel
    _, read = read_released({"model": wrapped, "model_ema": {}}, SPACE)
    assert torch.equal(read["norm.weight"], raw["norm.weight"])


def test_a_file_is_read_and_nothing_in_it_is_run(tmp_path: Path) -> None:
    torch.save({"model": WEIGHTS, "args": argparse.Namespace(lr=1e-3), "epoch": 119}, tmp_path / "supernet.pth")
    space, read = read_released(tmp_path / "supernet.pth", SPACE)
    assert torch.equal(
        load_supernet(space, read).state_dict()["stem.first.conv.weight"], read["stem.first.conv.weight"]
    )
    assert torch.equal(read["stages.0.blocks.0.fc1.bias"], WEIGHTS["blocks.0.mlp.fc1.bias"])
    torch.save({"model": WEIGHTS, "args": test_a_file_is_read_and_nothing_in_it_is_run}, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="not a checkpoint of tensors alone"):
        read_released(tmp_path / "evil.pth", SPACE)


VARIANCE = "patch_embed.conv1.bn.running_var"


def test_what_does_not_fit_is_named() -> None:
    changes: list[tuple[dict[str, Tensor | None], Space | None, str]] = [
        ({"norm.bias": None}, SPACE, "not of space golden: it lacks 'norm.bias'"),
        ({"extra": torch.zeros(1)}, SPACE, "there is no use for its 'extra'"),
        ({"blocks.1.mlp.fc1.bias": torch.zeros(3)}, SPACE, r"its blocks.1.mlp.fc1.bias is \[3\] instead of \[96\]"),
        ({name: None for name in WEIGHTS if name.startswith("blocks.9.")}, SPACE, "nothing for stages.2.blocks.1"),
        ({"blocks.4.patch_reduce.weight": None}, SPACE, "its blocks.7.pos_embed is"),
        ({}, None, "none of vit_resnas/tiny, .*; say which space it is of"),
        ({"pos_embed": None}, None, "not a ViT-ResNAS checkpoint: it lacks 'pos_embed'"),
        ({"pos_embed": torch.tensor(1.0)}, None, "its pos_embed or a weight is a single number"),
        ({"norm.bias": WEIGHTS["norm.bias"].long()}, SPACE, "norm.bias holds whole numbers"),
        ({VARIANCE: -WEIGHTS[VARIANCE]}, SPACE, f"{VARIANCE} holds variances below 0"),
        ({}, load_space("digits/vit"), "needs a space of family vit_res"),
    ]
    for change, space, message in changes:
        broken = {name: value for name, value in (WEIGHTS | change).items() if value is not None}
        with pytest.raises(UserError, match=message):
            read_released(broken, space)
