"""A twins network with every choice fixed is timm's Twins-SVT."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from timm.models.twins import Twins
from torch import nn

from raynas.costs import cost
from raynas.errors import UserError
from raynas.families.twins.checkpoint import read_timm
from raynas.space import load_arch
from tests.costs.flop_counter import count_macs
from tests.families.nets_spaces import make_images
from tests.families.timm_parts import assert_same_gradients, assert_same_logits, from_timm, on_meta, randomised

SIZES = {
    "small": (24_060_776, 2_927_353_344),
    "base": (56_070_952, 8_562_612_480),
    "large": (99_271_400, 15_111_777_280),
}


@pytest.mark.parametrize("size", SIZES)
def test_published_networks_are_timms(size: str) -> None:
    """Every parameter has its place, and costs are those of timm's network, counted."""
    model = on_meta(f"twins_svt_{size}")
    space, state = read_timm(model, "model")
    arch = load_arch(f"vitas/published/twins_svt_{size}")
    assert space == arch.space
    computed = cost(arch.space, [arch])
    assert (computed["params"][0], computed["macs"][0]) == SIZES[size]
    assert sum(parameter.numel() for parameter in model.parameters()) == SIZES[size][0]
    assert sum(tensor.numel() for tensor in state.values()) == SIZES[size][0]
    assert count_macs(model, torch.zeros(1, 3, 224, 224, device="meta")) == SIZES[size][1]


def test_logits_at_full_size() -> None:
    model = randomised(timm.create_model("twins_svt_small"))
    assert_same_logits(from_timm(model, read_timm), model)


def small(size: tuple[int, int], windows: int | None = 7) -> nn.Module:
    """Three stages of 2, 3 and 1 blocks; without windows every block is global."""
    return randomised(
        Twins(
            img_size=size,
            in_chans=2,
            num_classes=9,
            embed_dims=(12, 20, 24),
            num_heads=(2, 5, 3),
            mlp_ratios=(2, 3, 1.5),
            depths=(2, 3, 1),
            sr_ratios=(4, 2, 1),
            wss=None if windows is None else (windows,) * 3,
        )
    )


@pytest.mark.parametrize(
    ("size", "windows"),
    [((32, 64), 4), ((32, 64), 7), ((48, 16), 5), ((64, 64), None)],
    ids=["windows fit", "windows overhang", "windows overhang otherwise", "global alone"],
)
def test_logits_gradients_and_macs(size: tuple[int, int], windows: int | None) -> None:
    model = small(size, windows)
    ours = from_timm(model, read_timm)
    image = make_images(ours.space, 1)
    assert count_macs(ours, image) == count_macs(model, image)
    pairs = {
        "stages.0.embedding.weight": "patch_embeds.0.proj.weight",
        "stages.1.position.weight": "pos_block.1.proj.0.weight",
        "stages.0.blocks.1.attention.gsa.reduction.weight": "blocks.0.1.attn.sr.weight",
    }
    assert_same_gradients(ours, model, pairs)


def test_the_drop_path_ramp_is_timms() -> None:
    model = Twins(embed_dims=(8, 8), num_heads=(1, 1), mlp_ratios=(1, 1), depths=(2, 3), drop_path_rate=0.4)
    steps = [
        model.get_submodule(f"blocks.{stage}.{i}.drop_path1")
        for stage, depth in enumerate((2, 3))
        for i in range(depth)
    ]
    rates = [getattr(step, "drop_prob", 0.0) for step in steps]
    ours = from_timm(model, read_timm).train()
    ours.drop_path = 0.4
    torch.manual_seed(0)
    paths = ours.draw_paths(torch.zeros(2000), [])
    assert paths is not None and paths.shape == (5, 2, 2000)
    for rate, block in zip(rates, paths, strict=True):
        assert block.max().item() == pytest.approx(1 / (1 - rate))
        assert (block == 0).float().mean().item() == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("name", ["resnet18", "deit_tiny_patch16_224", "pvt_v2_b0"])
def test_other_models_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="twins space can express"):
        read_timm(on_meta(name), name)


def test_a_network_without_a_classifier_gets_one_of_zeros() -> None:
    model: Any = small((32, 32))
    model.reset_classifier(0)
    space, state = read_timm(model, "model")
    assert space.classes == 1 and not state["head.weight"].any() and not state["head.bias"].any()


def test_what_a_twins_space_lacks_is_named() -> None:
    model = small((32, 32))
    model.extra = nn.Parameter(torch.zeros(3))
    with pytest.raises(UserError, match="model has 'extra', which no twins space can express"):
        read_timm(model, "model")
    pooled = Twins(embed_dims=(8,), num_heads=(1,), mlp_ratios=(1,), depths=(1,), sr_ratios=(1,), global_pool="")
    with pytest.raises(UserError, match="pools by ''"):
        read_timm(pooled, "model")
    windows = Twins(embed_dims=(8, 8), num_heads=(1, 1), mlp_ratios=(1, 1), depths=(1, 1), sr_ratios=(1, 1), wss=(2, 3))
    with pytest.raises(UserError, match=r"has windows of \[2, 3\] tokens"):
        read_timm(windows, "model")
