"""A subnet of DeiT's shape is timm's DeiT."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import QuickGELU, RmsNorm
from timm.models.cait import Cait
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Attention, ParallelScalingBlock, ResPostBlock, VisionTransformer
from torch import nn

from raynas import build_supernet, cost, load_arch
from raynas.errors import UserError
from raynas.families.vit.checkpoint import read_timm
from raynas.nets.weights import load_supernet
from raynas.space import Space
from tests.families.nets_spaces import make_images
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


SMALL: dict[str, Any] = {
    "img_size": (32, 24), "patch_size": 8, "in_chans": 1, "num_classes": 9, "embed_dim": 48, "depth": 3, "num_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "part"),
    [
        ("cait_xxs24_224", "the architecture Cait"),
        ("vit_small_patch14_reg4_dinov2", r"register tokens \(reg_token\)"),
        ("vit_giant_patch14_dinov2", "a GluMlp in blocks.0"),
        ("vit_base_patch16_siglip_224", "the pooling 'map'"),
        ("vit_base_patch16_clip_224", r"a norm before the blocks \(norm_pre\)"),
        ("vit_small_r26_s32_224", r"a HybridEmbed of patches .* \(patch_embed\)"),
        ({"global_pool": "avg"}, r"a norm behind the pooling \(fc_norm\)"),
        ({"block_fn": ResPostBlock}, "a ResPostBlock in blocks.0"),
        ({"block_fn": ParallelScalingBlock}, "a ParallelScalingBlock in blocks.0"),
        ({"act_layer": QuickGELU}, r"the activation QuickGELU\(\) in blocks.0"),
        ({"act_layer": partial(nn.GELU, approximate="tanh")}, "the activation GELU"),
        ({"qk_norm": True}, "'blocks.0.attn.q_norm.weight'"),
        ({"norm_layer": RmsNorm}, "RmsNorm"),
        ({"pos_embed": "none"}, "no position embeddings"),
    ],
)
def test_models_that_no_vit_space_can_express_are_refused_by_their_part(model: str | dict[str, Any], part: str) -> None:
    theirs = on_meta(model) if isinstance(model, str) else VisionTransformer(**SMALL | model)
    with pytest.raises(UserError, match=f"theirs has {part}.*, which no vit space can express"):
        read_timm(theirs, "theirs")


def test_deit3_whose_class_token_has_no_position() -> None:
    model = randomised(VisionTransformer(**SMALL, no_embed_class=True, init_values=0.2))
    ours = from_timm(model, read_timm)
    assert_same_gradients(ours, model, {"blocks.1.ls1.gamma": "blocks.1.ls1.gamma"})
    assert not ours.get_parameter("stem.8.position")[:, 0].any()


def test_dinov2_which_has_no_classifier() -> None:
    """What is before the classifier is timm's; the classifier is one that no data fit, so that it is made anew."""
    model: Any = randomised(VisionTransformer(**SMALL | {"patch_size": 4, "num_classes": 0}, init_values=0.2))
    space, state = read_timm(model, "model")
    assert space.classes == 1 and not state["head.weight"].any()
    torch.manual_seed(1)
    ours, images = load_supernet(space.with_input(classes=5), state).eval(), make_images(space, 2)
    expected = F.linear(model(images), ours.get_parameter("head.weight"))
    torch.testing.assert_close(ours(images), expected, rtol=0, atol=1e-5)
    assert expected.abs().max() > 1e-2
    theirs = on_meta("vit_small_patch14_dinov2")
    space, _ = read_timm(theirs, "model")
    assert space["patch_size"].choices == (14,) and space.input_size == (518, 518)
    params = sum(each.numel() for each in theirs.parameters())
    assert cost(space, [space.smallest()])["params"][0] == params + space["width"].choices[0] + 1


def test_layer_scale() -> None:
    model = randomised(VisionTransformer(**SMALL, init_values=0.3))
    ours = from_timm(model, read_timm)
    scales = ("blocks.0.ls1.gamma", "blocks.2.ls2.gamma")
    assert_same_gradients(ours, model, {name: name for name in scales})
    torch.testing.assert_close(build_supernet(ours.space).get_parameter(scales[0]), torch.full((48,), 1e-5))
    theirs = on_meta("vit_medium_patch16_gap_256")  # with layer scale, and without a class token
    space, _ = read_timm(theirs, "model")
    assert cost(space, [space.smallest()])["params"][0] == sum(each.numel() for each in theirs.parameters())


def test_distillation_token() -> None:
    """In training both classifiers' logits apart, else their mean."""
    model: Any = randomised(VisionTransformerDistilled(**SMALL))
    ours = from_timm(model, read_timm)
    assert_same_gradients(ours, model, {"distillation_head.weight": "head_dist.weight"})
    tokens = torch.cat([model.cls_token.grad, model.dist_token.grad], dim=1)
    torch.testing.assert_close(ours.get_parameter("stem.8.class_token").grad, tokens, rtol=1e-4, atol=1e-4)
    model.set_distilled_training()
    images = make_images(ours.space, 3)
    apart = torch.stack(model.train()(images), dim=1)
    torch.testing.assert_close(ours.train()(images, distilled=True), apart, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("size", "params"), [("tiny", 5_910_800), ("small", 22_436_432), ("base", 87_338_192)])
def test_distilled_deit_at_full_size(size: str, params: int) -> None:
    space, state = read_timm(on_meta(f"deit_{size}_distilled_patch16_224"), "model")
    assert space.constants.distillation_token and cost(space, [space.smallest()])["params"][0] == params
    assert sum(tensor.numel() for tensor in state.values()) == params


def cait_space(width: int, heads: int, depth: int, **changes: object) -> Space:
    """CaiT without its talking heads."""
    class_attention = {"blocks": 2, "heads": heads, "head_dim": width // heads}
    constants = {"head_dim": width // heads, "layer_scale": 1e-5, "class_attention": class_attention}
    dimensions = {"width": [width], "depth": [depth], "blocks": {"heads": [heads], "mlp_ratio": [4.0]}}
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 224, "channels": 3},
            "classes": 1000,
            **changes,
            "constants": constants,
            "dimensions": {"patch_size": [16], **dimensions},
        },
        "cait",
    )


@pytest.mark.parametrize(("depth", "published"), [(24, 11_956_264), (36, 17_299_720)])
def test_cait_xxs_at_full_size(depth: int, published: int) -> None:
    """Its talking heads are two mixings of heads in each block, which a vit space does not have."""
    model = on_meta(f"cait_xxs{depth}_224")
    assert sum(tensor.numel() for tensor in model.parameters()) == published
    space = cait_space(192, 4, depth)
    assert cost(space, [space.smallest()])["params"][0] == published - depth * 2 * (4 * 4 + 4)


def test_class_attention_is_cait() -> None:
    model = randomised(Cait(**SMALL | {"img_size": (32, 48), "patch_size": 16}, attn_block=Attention))
    space = cait_space(48, 4, 3, input={"size": [32, 48], "channels": 1}, classes=9)
    state = {}
    for name, value in model.state_dict().items():
        key = name.replace("blocks_token_only", "class_blocks").replace("gamma_1", "ls1.gamma")
        key = key.replace("gamma_2", "ls2.gamma").replace("patch_embed.", "stem.16.").replace("attn.", "")
        key = (
            key.replace("mlp.", "").replace("cls_token", "stem.16.class_token").replace("pos_embed", "stem.16.position")
        )
        if ".qkv." in key:  # [3, heads, head_dim] to [heads, 3, head_dim]
            value = value.unflatten(0, (3, 4, -1)).transpose(0, 1).flatten(0, 2)
        state[key] = value.clone()
    ours = load_supernet(space, state).eval()
    both = ("class_blocks.0.q.weight", "class_blocks.1.fc1.bias", "stem.16.class_token", "blocks.1.ls2.gamma")
    theirs = ("blocks_token_only.0.attn.q.weight", "blocks_token_only.1.mlp.fc1.bias", "cls_token", "blocks.1.gamma_2")
    assert_same_gradients(ours, model, dict(zip(both, theirs, strict=True)))


@pytest.mark.parametrize(
    ("name", "heads", "head_dim", "params"),
    [("autoformer/published/deit_tiny", 3, 64, 5_717_416), ("vitas/published/vitas_block_1g3", 3, 48, 6_048_414)],
)
def test_caits_parts_in_vitas_networks_of_1_3_gmacs(name: str, heads: int, head_dim: int, params: int) -> None:
    """ViTAS v1 gives 5 and 6 million parameters for DeiT-Ti and its own block at 1.3 GMACs with CaiT's parts.

    Layer scale adds two factors a channel and block, and no MACs. Two blocks that become class attention keep their
    parameters (without a position for the class token), and nearly all of their MACs go.
    """
    arch = load_arch(name)
    plain = arch.space.fix(arch)
    width, ratio = arch["width"], plain.smallest().get("block.mlp_width", 4 * arch["width"]) / arch["width"]
    constants = plain.constants.model_copy(update={"layer_scale": 1e-5})
    scaled = plain.replace(constants=constants)
    found, before = (cost(space, [space.smallest()]) for space in (scaled, plain))
    assert before["params"][0] == params and found["params"][0] == params + 12 * 2 * width
    assert found["macs"][0] == before["macs"][0] and round(found["macs"][0] / 1e9, 1) == 1.3
    late = {"blocks": 2, "heads": heads, "head_dim": head_dim, "mlp_ratio": ratio}
    shorter = {**scaled.to_dict(), "constants": {**constants.model_dump(), "class_attention": late}}
    shorter["dimensions"] = {**shorter["dimensions"], "depth": [10]}
    space = Space.from_dict(shorter, "cait")
    cheaper = cost(space, [space.smallest()])
    assert cheaper["params"][0] == params + 12 * 2 * width - width
    assert cheaper["params"][0] // 10**6 == params // 10**6 == {"deit_tiny": 5}.get(name.rpartition("/")[2], 6)
    assert cheaper["macs"][0] < 0.88 * before["macs"][0]
    shorter["dimensions"]["depth"] = [12]  # and behind all blocks they are too large
    shorter["constants"]["max_depth"] = shorter["constants"]["max_depth"] and 14
    larger = cost(space := Space.from_dict(shorter, "more"), [space.smallest()])
    assert round(larger["params"][0] / 1e6, 2) == {3 * 64: 6.61}.get(width, 6.99)
