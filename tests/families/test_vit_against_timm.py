"""A subnet of DeiT's shape is timm's DeiT."""

from __future__ import annotations

import pytest
import timm
from timm.models.vision_transformer import VisionTransformer

from raynas import load_arch
from raynas.errors import UserError
from raynas.families.vit.checkpoint import read_timm
from tests.families.timm_parts import assert_same_gradients, assert_same_logits, from_timm, on_meta, randomised


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("bias", [True, False])
def test_logits_and_gradients(pool: str, bias: bool) -> None:
    model = randomised(
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
    ours = from_timm(model, read_timm)
    assert ours.space.constants.pool == pool and ours.space.constants.head_dim == 12
    assert_same_gradients(ours, model, {"blocks.0.norm1.weight": "blocks.0.norm1.weight"})


def test_deit_at_full_size() -> None:
    for size, params in {"tiny": 5_717_416, "small": 22_050_664}.items():
        space, state = read_timm(on_meta(f"deit_{size}_patch16_224"), "model")
        assert space == load_arch(f"autoformer/published/deit_{size}").space
        assert sum(tensor.numel() for tensor in state.values()) == params
    model = randomised(timm.create_model("deit_tiny_patch16_224"))
    assert_same_logits(from_timm(model, read_timm), model)


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "vit_medium_patch16_gap_256", "resnet18"])
def test_models_that_no_vit_space_can_express_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="vit space can express"):
        read_timm(on_meta(name), name)
