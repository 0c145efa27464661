"""An s3 network with every choice fixed is timm's Swin transformer, S3's among them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from timm.models.swin_transformer import SwinTransformer
from torch import nn

from raynas.costs import cost
from raynas.errors import UserError
from raynas.families.s3.checkpoint import read_timm
from raynas.nets import build_supernet
from raynas.space import load_arch, load_space
from tests.costs.flop_counter import count_macs
from tests.families.nets_spaces import make_images
from tests.families.timm_parts import assert_same_gradients, assert_same_logits, from_timm, on_meta, randomised

SIZES = {
    "tiny": ("swin_s3_tiny_224", 28_328_674, 4_623_332_352),
    "small": ("swin_s3_small_224", 49_737_298, 9_404_703_744),
    "base": ("swin_s3_base_224", 71_125_762, 13_655_012_352),
    "swin_tiny": ("swin_tiny_patch4_window7_224", 28_288_354, 4_490_566_656),
    "swin_small": ("swin_small_patch4_window7_224", 49_606_258, 8_740_875_264),
    "swin_base": ("swin_base_patch4_window7_224", 87_768_224, 15_430_946_816),
}


@pytest.mark.parametrize("size", SIZES)
def test_published_networks_are_timms(size: str) -> None:
    """Every parameter has its place, and costs are those of the released code (S3) or of timm's (Swin), counted."""
    name, params, macs = SIZES[size]
    model = on_meta(name)
    space, state = read_timm(model, name)
    arch = load_arch(f"s3/published/{size}")
    assert space.smallest().network_id == arch.network_id and space.constants == arch.space.constants
    computed = cost(arch.space, [arch])
    assert (computed["params"][0], computed["macs"][0]) == (params, macs)
    assert sum(parameter.numel() for parameter in model.parameters()) == params
    assert sum(tensor.numel() for tensor in state.values()) == params


def test_logits_and_macs_at_full_size() -> None:
    model = randomised(timm.create_model("swin_s3_tiny_224"))
    ours = from_timm(model, read_timm)
    assert_same_logits(ours, model)
    assert count_macs(ours, make_images(ours.space, 1)) == SIZES["tiny"][2]


def small(size: tuple[int, int], windows: Any, **options: Any) -> nn.Module:
    """Three stages of 2, 3 and 2 blocks."""
    shape: dict[str, Any] = {"embed_dim": 8, "depths": (2, 3, 2), "num_heads": (2, 4, 8), "mlp_ratio": (2, 3.3, 1.5)}
    shape |= {"img_size": size, "patch_size": 2, "in_chans": 2, "num_classes": 9, "window_size": windows}
    return randomised(SwinTransformer(**{**shape, **options}))


@pytest.mark.parametrize(
    ("size", "windows"),
    [((32, 32), 4), ((16, 32), (2, 4, 7)), ((20, 28), 16)],
    ids=["shifted in two stages", "shifted along one axis", "whole grids, odd ones to merge"],
)
def test_logits_gradients_and_macs(size: tuple[int, int], windows: Any) -> None:
    model = small(size, windows)
    ours = from_timm(model, read_timm)
    image = make_images(ours.space, 1)
    assert count_macs(ours, image) == count_macs(model, image)
    pairs = {
        "embedding.conv.weight": "patch_embed.proj.weight",
        "stages.1.merging.linear.weight": "layers.1.downsample.reduction.weight",
        "stages.2.blocks.1.fc2.weight": "layers.2.blocks.1.mlp.fc2.weight",
    }
    assert_same_gradients(ours, model, pairs)
    table = ours.get_parameter("stages.0.blocks.1.bias.table").grad
    theirs_table = model.get_parameter("layers.0.blocks.1.attn.relative_position_bias_table").grad
    assert table is not None and theirs_table is not None
    torch.testing.assert_close(table.flatten(1).T, theirs_table, rtol=1e-4, atol=1e-4)


def test_resized_it_is_timms_of_that_size() -> None:
    """Where windows divide every grid: the last one, which was a single window, is cut and shifted now."""
    model, larger = small((16, 16), 2), small((32, 32), 2)
    larger.load_state_dict({name: value for name, value in model.state_dict().items() if "mask" not in name}, False)
    assert_same_logits(from_timm(model, read_timm).resized(32), larger)


def test_windows_scale_with_the_image_as_timms() -> None:
    """Tables are interpolated, the last grid is one window, and costs are those of the larger windows."""
    model = small((32, 32), (2, 4, 4))
    ours = from_timm(model, read_timm)
    larger = ours.resized((64, 96), scaled=True)
    model.set_input_size((64, 96))  # type: ignore[operator]  # timm's rule, 2 to 4 x 6 tokens
    assert_same_logits(larger, model)
    arch, image = larger.space.smallest(), make_images(larger.space, 1)
    assert arch == ours.space.smallest()
    assert cost(larger.space, [arch])["macs"][0] == count_macs(larger, image) == count_macs(model, image)
    again = larger.extract(arch).resized((32, 32))
    assert again.space.constants.windows_for == (32, 32)  # and so it is the first network again, but for rounding
    in_place = copy.deepcopy(ours)
    in_place.set_input_size((64, 96))
    assert_same_logits(in_place, model)
    kept = ours.resized((64, 96))
    assert kept.space.constants.windows_for is None and count_macs(kept, image) < count_macs(larger, image)
    with pytest.raises(UserError, match="family vit has no windows"):
        build_supernet(load_space("digits/vit")).resized(16, scaled=True)


@pytest.mark.parametrize(("size", "printed"), [("small", 33), ("base", 46)])
def test_s3_at_384_has_the_printed_macs(size: str, printed: int) -> None:
    """Windows of 7 tokens are 12, those of 14 are 24 (S3, Table 4)."""
    name = SIZES[size][0]
    arch = load_arch(f"s3/published/{size}")
    with torch.device("meta"):
        space = build_supernet(arch.space.fix(arch)).space_at(384, scaled=True)
    macs = int(cost(space, [space.smallest()])["macs"][0])
    assert round(macs / 1e9) == printed
    model = on_meta(name)
    model.set_input_size((384, 384))  # type: ignore[operator]
    theirs = read_timm(model, name)[0]
    windows = {"small": [24, 24, 24, 12], "base": [12, 12, 24, 12]}[size]
    assert [theirs.smallest()[f"stages.{stage}.blocks.0.window"] for stage in range(4)] == windows
    assert int(cost(theirs, [theirs.smallest()])["macs"][0]) == macs
    assert theirs.smallest().network_id == space.smallest().network_id


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 5}, r"windows of \(5, 5\), shifted by \(0, 0\), on a grid of \(16, 16\) in stage 0"),
        ({"windows": (2, 4)}, r"windows of \(2, 4\)"),
        ({"windows": 4, "head_dim": (4, 5, 4)}, "heads of 4 and 5 channels"),
        ({"windows": 4, "global_pool": "max"}, "pools by 'max'"),
        ({"windows": 4, "qkv_bias": False}, r"has no layers.0.blocks.0.attn.qkv.bias"),
    ],
)
def test_what_an_s3_space_lacks_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_timm(small((32, 32), **options), "model")


def test_a_network_without_a_classifier_gets_one_of_zeros() -> None:
    space, state = read_timm(small((32, 32), 4, num_classes=0), "model")
    assert space.classes == 1 and state["head.weight"].shape == (1, 32) and not state["head.weight"].any()


def test_other_models_are_refused() -> None:
    with pytest.raises(UserError, match="is not a Swin transformer that an s3 space can express"):
        read_timm(on_meta("resnet18"), "resnet18")
