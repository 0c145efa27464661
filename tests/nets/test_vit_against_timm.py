"""A subnet of DeiT's shape is timm's DeiT."""

from __future__ import annotations

import pytest
import timm
import torch
from nets_spaces import make_images
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from raynas import load_arch
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.nets.vit.checkpoint import read_timm
from raynas.nets.weights import load_supernet


def from_timm(model: nn.Module) -> Supernet:
    """The one-point supernet with a timm model's weights."""
    return load_supernet(*read_timm(model, "model")).eval()


def randomise(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_and_gradients(pool: str, bias: bool) -> None:
    model = randomise(
        VisionTransformer(
            img_size=(32, 24),
            patch_size=8,
            in_chans=1,
            num_classes=9,
            embed_dim=48,
            depth=3,
            num_heads=4,
            mlp_ratio=2.5,
            qkv_bias=bias,
            global_pool="token" if pool == "token" else "avg",
            fc_norm=False,
        )
    )
    ours = from_timm(model)
    assert ours.space.constants.pool == pool and ours.space.constants.head_dim == 12
    images = make_images(ours.space, 3)
    torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)
    for network in (ours, model):
        network(images).square().sum().backward()
    norms = [network.get_parameter("blocks.0.norm1.weight").grad for network in (ours, model)]
    torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", ["tiny", "small"])
def test_deit_at_full_size(size: str) -> None:
    published = load_arch(f"autoformer/published/deit_{size}")
    model = randomise(timm.create_model(f"deit_{size}_patch16_224", pretrained=False))
    ours = from_timm(model)
    assert ours.space == published.space
    expected = {"tiny": 5_717_416, "small": 22_050_664}[size]
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters()) == expected
    images = make_images(ours.space, 1)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_medium_patch16_gap_256", "resnet18"])
def test_models_that_no_vit_space_can_express_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="vit space can express"):
        read_timm(timm.create_model(name), name)
