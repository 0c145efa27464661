"""A subnet of DeiT's shape is timm's DeiT."""

from __future__ import annotations

import pytest
import timm
import torch
from nets_spaces import make_images
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from raynas import load_arch
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Space

NAMES = {"attn.qkv": "qkv", "attn.proj": "proj", "mlp.fc1": "fc1", "mlp.fc2": "fc2", "patch_embed.proj": "stem.{}.proj"}


def from_timm(model: nn.Module, space: Space, head_dim: int) -> Supernet:
    """The one-point supernet with a timm model's weights."""
    patch = space["patch_size"].choices[0]
    state: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if ".qkv." in name:  # [3, heads, head_dim] to [heads, 3, head_dim]
            value = value.unflatten(0, (3, -1, head_dim)).transpose(0, 1).flatten(0, 2)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours.format(patch))
        renamed = {"cls_token": f"stem.{patch}.class_token", "pos_embed": f"stem.{patch}.position"}
        state[renamed.get(name, name)] = value
    return load_supernet(space, state).eval()


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
    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": [32, 24], "channels": 1},
            "classes": 9,
            "constants": {"head_dim": 12, "pool": pool, "qkv_bias": "head" if bias else "none"},
            "dimensions": {
                "patch_size": [8],
                "width": [48],
                "depth": [3],
                "blocks": {"heads": [4], "mlp_ratio": [2.5]},
            },
        }
    )
    ours = from_timm(model, space, 12)
    images = make_images(space, 3)
    torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)
    for network in (ours, model):
        network(images).square().sum().backward()
    norms = [network.get_parameter("blocks.0.norm1.weight").grad for network in (ours, model)]
    torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-4)


def test_deit_tiny_at_full_size() -> None:
    space = load_arch("autoformer/published/deit_tiny").space
    model = randomise(timm.create_model("deit_tiny_patch16_224", pretrained=False))
    ours = from_timm(model, space, 64)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in model.parameters()) == 5_717_416
    images = make_images(space, 1)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), model(images), rtol=0, atol=1e-5)
