"""Networks from `timm.create_model("raynas_vit", ...)` behave as timm's own models of their kind."""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.deit import VisionTransformerDistilled
from timm.optim import param_groups_layer_decay
from torch import Tensor, nn

import raynas.timm  # noqa: F401  it registers the model
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.space import save_arch
from raynas.space.families import family_module
from tests.families.nets_spaces import make_images, make_space, make_supernet
from tests.families.timm_parts import randomised

SPACES = ("deit", "distilled", "cait", "autoformer", "kept anywhere", "twins", "vit_res", "hybrid", "s3")
every_family = pytest.mark.parametrize("name", SPACES)

TIMM: dict[str, tuple[str, str, dict[str, Any]]] = {
    "vit": ("vit", "vit_tiny_patch16_224", {"img_size": (24, 32), "patch_size": 8, "embed_dim": 12, "num_heads": 2}),
    "gap": ("vit", "vit_base_patch16_gap_224", {"img_size": 16, "patch_size": 4, "embed_dim": 12, "num_heads": 3}),
    "deit": ("vit", "deit_tiny_distilled_patch16_224", {"img_size": 16, "patch_size": 4, "embed_dim": 12}),
    "swin": ("s3", "swin_tiny_patch4_window7_224", {"img_size": (32, 64), "embed_dim": 8, "window_size": 2}),
    "twins": ("twins", "twins_svt_small", {"img_size": 64, "embed_dims": (8, 16, 24, 32)}),
}
"""Family, timm's model, and arguments that make it small."""

SHAPES: dict[str, dict[str, Any]] = {
    "swin": {"depths": (2, 2, 3), "num_heads": (1, 2, 4)},
    "twins": {"depths": (2, 1, 2, 1), "num_heads": (1, 2, 3, 4), "wss": (2, 2, 2, 2)},
    "vit": {"depth": 4},
    "gap": {"depth": 4},
    "deit": {"depth": 4, "num_heads": 2},
}


def small_timm(kind: str, **options: Any) -> nn.Module:
    """A small model of timm's, the same each time."""
    _, name, arguments = TIMM[kind]
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=5, **arguments, **SHAPES[kind], **options)
    return randomised(model)


def written(network: Supernet, folder: Path) -> Path:
    """A folder with the network's arch and weights."""
    folder.mkdir(exist_ok=True)
    save_arch(network.space.smallest(), folder / "arch.yaml")
    state = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each space, with a network of random weights."""
    at, found = tmp_path_factory.mktemp("networks"), {}
    for number, name in enumerate(SPACES):
        space = make_space(name)
        found[name] = written(make_supernet(space).extract(space.largest()), at / str(number))
    return found


def load(folder: Path, **options: Any) -> Any:
    """The network in a folder, as a user gets it."""
    return timm.create_model("raynas_vit", pretrained=True, arch=folder, **options).eval()


def pair(kind: str, tmp_path: Path) -> tuple[Any, Any, Path]:
    """A model of timm's and ours with its weights."""
    from raynas.nets.weights import load_supernet

    theirs = small_timm(kind)
    space, state = family_module(TIMM[kind][0], "checkpoint").read_timm(theirs, "model")
    folder = written(load_supernet(space, state), tmp_path / kind)
    return theirs, load(folder), folder


# -- beside timm's models ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TIMM)
@torch.no_grad()
def test_features_and_levels_are_timms(kind: str, tmp_path: Path) -> None:
    theirs, ours, _ = pair(kind, tmp_path)
    images = make_images(ours.space, 2)
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-5}
    features = theirs.forward_features(images)
    torch.testing.assert_close(ours.forward_features(images), features, **close)
    for pre_logits in (False, True):
        expected = theirs.forward_head(features, pre_logits=pre_logits)
        torch.testing.assert_close(ours.forward_head(features, pre_logits=pre_logits), expected, **close)
    asked: list[dict[str, Any]] = [{}, {"norm": True}, {"indices": 2}, {"indices": [0, -1], "norm": True}]
    for options in (*asked, {"indices": [0, 1], "stop_early": True}):
        (x, levels), (expected, wanted) = (m.forward_intermediates(images, **options) for m in (ours, theirs))
        torch.testing.assert_close(levels, wanted, **close)
        if not (kind == "twins" and "stop_early" in options):  # timm's are then [batch, channels, rows, columns]
            torch.testing.assert_close(x, expected, **close)
        only = ours.forward_intermediates(images, intermediates_only=True, **options)
        torch.testing.assert_close(only, wanted, **close)
    for name in ("num_features", "head_hidden_size", "num_classes", "in_chans"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for key in ("num_chs", "reduction"):
        assert [info[key] for info in ours.feature_info] == [info[key] for info in theirs.feature_info]
    if TIMM[kind][0] == "vit":
        options = {"return_prefix_tokens": True, "output_dict": True}
        mine, timms = (model.forward_intermediates(images, **options) for model in (ours, theirs))
        assert mine.keys() == timms.keys()
        for key in mine:
            torch.testing.assert_close(mine[key], timms[key], **close)


@pytest.mark.parametrize("kind", TIMM)
@torch.no_grad()
def test_feature_maps_are_timms(kind: str, tmp_path: Path) -> None:
    _, ours, folder = pair(kind, tmp_path)
    images = make_images(ours.space, 2)
    for options in ({}, {"out_indices": (0, 2)}, {"out_indices": (-1,)}):
        theirs = small_timm(kind, features_only=True, **options)
        mine = load(folder, features_only=True, **options)
        for name in ("channels", "reduction"):
            assert getattr(mine.feature_info, name)() == getattr(theirs.feature_info, name)()
        assert mine.output_fmt == theirs.output_fmt
        weights = {name.replace("layers_", "layers."): value for name, value in theirs.state_dict().items()}
        assert weights.keys()  # random, so only shapes are compared; values are those of the levels below
        assert [x.shape for x in mine(images)] == [x.shape for x in theirs(images)]
        levels = ours.forward_intermediates(images, mine.feature_info.out_indices, intermediates_only=True)
        if mine.output_fmt == "NHWC":
            levels = [each.permute(0, 2, 3, 1) for each in levels]
        torch.testing.assert_close(mine(images), levels)


@pytest.mark.parametrize("kind", TIMM)
def test_the_classifier_is_replaced_as_in_timm(kind: str, tmp_path: Path) -> None:
    theirs, ours, folder = pair(kind, tmp_path)
    images = make_images(ours.space, 2)
    with torch.no_grad():
        for model in (ours, theirs):
            model.reset_classifier(0)
        torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
        torch.testing.assert_close(load(folder, num_classes=0)(images), ours(images))
        if not isinstance(theirs, VisionTransformerDistilled):  # which pools its tokens all the same
            for model in (ours, theirs):
                model.reset_classifier(0, "")
            torch.testing.assert_close(ours(images), theirs(images), rtol=0, atol=1e-5)
            for model in (ours, theirs):
                model.reset_classifier(3)
            assert ours(images).shape == theirs(images).shape


# -- every family ------------------------------------------------------------------------------------------------------


@every_family
@torch.no_grad()
def test_forward_is_its_parts(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    images = make_images(model.space, 3)
    logits, features = model(images), model.forward_features(images)
    torch.testing.assert_close(model.forward_head(features), logits)
    final, levels = model.forward_intermediates(images)
    torch.testing.assert_close(final, features)
    pooled = model.forward_head(features, pre_logits=True)
    assert pooled.shape == (3, model.head_hidden_size)
    for info, level in zip(model.feature_info, levels, strict=True):
        assert level.shape[1] == info["num_chs"]
        for side, pixels in zip(level.shape[2:], model.space.input_size, strict=True):
            assert side <= math.ceil(pixels / info["reduction"]) or model.space.has("resolution")
    rows = model.forward_intermediates(images, output_fmt="NHWC", intermediates_only=True)
    flat = model.forward_intermediates(images, output_fmt="NLC", intermediates_only=True)
    for level, row, tokens in zip(levels, rows, flat, strict=True):
        assert torch.equal(row.permute(0, 3, 1, 2), level) and torch.equal(tokens, row.flatten(1, 2))
    config = model.pretrained_cfg
    assert f"{config['first_conv']}.weight" in model.state_dict()
    assert tuple(config["pool_size"]) == tuple(levels[-1].shape[2:]) if model.space.family != "hybrid" else True
    headless = load(folders[name], num_classes=0)
    assert headless.num_classes == 0 and torch.equal(headless(images), pooled)
    assert [isinstance(head, nn.Identity) for head in _heads(headless)] == [True] * len(_heads(model))
    headless.reset_classifier(0, "")
    assert torch.equal(headless(images), features)
    headless.reset_classifier(4, headless.pooling)
    assert headless(images).shape == (3, 4) and all(head.weight.shape[0] == 4 for head in _heads(headless))
    with pytest.raises(UserError, match="global_pool='max'"):
        headless.reset_classifier(4, "max")


def _heads(model: Any) -> tuple[Any, ...]:
    found = model.get_classifier()
    return found if isinstance(found, tuple) else (found,)


@every_family
@torch.no_grad()
def test_feature_maps_need_no_more_than_their_layers(name: str, folders: dict[str, Path]) -> None:
    whole = load(folders[name])
    images = make_images(whole.space, 2)
    levels = whole.forward_intermediates(images, intermediates_only=True)
    maps = load(folders[name], features_only=True, feature_cls="getter")
    found = maps(images)
    assert len(found) == min(3 if whole.space.family == "vit" else 4, len(levels))
    torch.testing.assert_close(found, levels[-len(found) :])
    first = load(folders[name], features_only=True, feature_cls="getter", out_indices=(0,))
    torch.testing.assert_close(first(images), levels[:1])
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (first, maps, whole)]
    assert count[0] <= count[1] < count[2]
    x = images.requires_grad_()
    with torch.enable_grad():
        sum(level.square().sum() for level in first.train()(x)).backward()
    unused = [key for key, parameter in first.named_parameters() if parameter.grad is None]
    assert not [key for key in unused if "class_token" not in key], unused
    with pytest.raises(UserError, match="levels"):
        load(folders[name], features_only=True, out_indices=(0, 30))


@every_family
def test_layer_decay(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    groups = param_groups_layer_decay(model, layer_decay=0.5, no_weight_decay_list=model.no_weight_decay())
    scale = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    scales = {key: scale[id(parameter)] for key, parameter in model.named_parameters()}
    for head in _heads(model):
        assert {scale[id(parameter)] for parameter in head.parameters()} == {1.0}
    assert scales[f"{model.pretrained_cfg['first_conv']}.weight"] == min(scales.values())
    blocks = [key for key in scales if ".blocks." in key or key.startswith("blocks.") or ".layers." in key]
    order = [scales[key] for key in blocks]
    assert order == sorted(order) and len(set(order)) == len({_block(key) for key in blocks})
    assert all(value < 1 for value in order)
    coarse = timm.models.group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert len(set(coarse.values())) <= len(set(scales.values()))
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    assert not decayed & {id(model.get_parameter(key)) for key in model.no_weight_decay()}


def _block(key: str) -> str:
    """The block of a parameter."""
    parts = key.split(".")
    return ".".join(parts[: 2 if parts[0] == "blocks" else 4])


@every_family
def test_checkpointing_saves_and_changes_nothing(name: str, folders: dict[str, Path]) -> None:
    plain = load(folders[name], drop_path_rate=0.3).train()
    other = load(folders[name], drop_path_rate=0.3).train()
    other.set_grad_checkpointing()
    images = make_images(plain.space, 4)
    kept = []
    for model in (plain, other):
        torch.manual_seed(1)
        bytes_kept = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal bytes_kept
            bytes_kept += tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            loss = model(images).square().mean()
        loss.backward()
        kept.append(bytes_kept)
    assert kept[1] < kept[0]
    for (key, one), two in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None), key
        if one.grad is not None and two.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, msg=key)
    for one, two in zip(plain.buffers(), other.buffers(), strict=True):
        assert torch.equal(one, two)
    other.set_grad_checkpointing(False)
    assert not any(getattr(module, "grad_checkpointing", False) for module in other.modules())


@every_family
@torch.no_grad()
def test_other_forms_compute_the_same(name: str, folders: dict[str, Path]) -> None:
    """Copies, images in channels-last order, other image sizes there and back, and half precision."""
    model = load(folders[name])
    images = make_images(model.space, 2)
    expected = model(images)
    assert torch.equal(copy.deepcopy(model)(images), expected)
    torch.testing.assert_close(model(images.to(memory_format=torch.channels_last)), expected)
    half = copy.deepcopy(model).bfloat16()(images.bfloat16())
    assert half.dtype == torch.bfloat16 and torch.isfinite(half).all()
    torch.testing.assert_close(half.float(), expected, rtol=0.1, atol=0.1 * float(expected.abs().max()))
    if model.space.has("resolution"):
        return  # it resizes images itself
    size = tuple(2 * side for side in model.space.input_size)
    larger = copy.deepcopy(model)
    before = dict(larger.named_parameters())
    larger.set_input_size(size)
    wide = torch.nn.functional.interpolate(images, size=size)
    assert torch.equal(larger(wide), model.resized(size, scaled=model.space.family == "s3")(wide))
    grids = model.position_grids()
    assert all(parameter is before[key] for key, parameter in larger.named_parameters() if key not in grids)
    assert timm.data.resolve_model_data_config(larger)["input_size"] == (model.space.channels, *size)
    again = load(folders[name], img_size=size, num_classes=0)
    again.reset_classifier(model.space.classes)
    assert again(wide).shape == expected.shape


@pytest.mark.slow
def test_one_graph_with_its_features() -> None:
    space = make_space("s3")
    network = make_supernet(space).extract(space.largest())
    images = make_images(space, 2)
    for method in (network.forward_features, network.forward_intermediates):
        compiled = torch.compile(method, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(images), method(images))


def test_channels_follow_timms_rule(folders: dict[str, Path]) -> None:
    from timm.models import adapt_input_conv

    for name in ("deit", "vit_res", "hybrid", "s3", "twins"):
        own = load(folders[name])
        before = own.state_dict()[f"{own.pretrained_cfg['first_conv']}.weight"]
        for channels in {1, 3, 5} - {own.in_chans}:
            model = load(folders[name], in_chans=channels)
            found = model.state_dict()[f"{model.pretrained_cfg['first_conv']}.weight"]
            torch.testing.assert_close(found, adapt_input_conv(channels, before, base_chans=own.in_chans))
            assert model.in_chans == channels == timm.data.resolve_model_data_config(model)["input_size"][0]


@every_family
@torch.no_grad()
def test_pooling_leaves_the_classifier_as_it_was_trained(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    x = torch.randn(2, *model.pretrained_cfg["input_size"])
    assert torch.equal(load(folders[name], global_pool=model.pooling)(x), model(x))
    assert all(map(torch.equal, load(folders[name], global_pool="").state_dict().values(), model.state_dict().values()))


@every_family
@pytest.mark.parametrize("safe", [True, pytest.param(False, marks=pytest.mark.slow)])
@torch.no_grad()
def test_timm_saves_it_for_a_hub(name: str, safe: bool, folders: dict[str, Path], tmp_path: Path) -> None:
    """As it is then, without the folder that it was read from, by timm's own functions (`push_to_hf_hub` uses them)."""
    shutil.copytree(folders[name], tmp_path / "given")
    model = load(tmp_path / "given", num_classes=4)
    shutil.rmtree(tmp_path / "given")
    for classes in (4, 6, 0):
        if classes != 4:
            model.reset_classifier(classes)
        place = tmp_path / str(classes)
        timm.models.save_for_hf(model, str(place), safe_serialization=safe)
        again = timm.create_model(f"local-dir:{place}", pretrained=True).eval()
        x = torch.randn(2, *model.pretrained_cfg["input_size"])
        assert torch.equal(again(x), model(x)) and again.num_classes == classes
        assert timm.data.resolve_model_data_config(again) == timm.data.resolve_model_data_config(model)
        assert timm.create_model(f"local-dir:{place}", pretrained=True, num_classes=3).eval()(x).shape == (2, 3)
    if name == "hybrid":  # its networks are of one resolution
        return
    channels, *size = model.pretrained_cfg["input_size"]
    model.set_input_size([2 * side for side in size])
    timm.models.save_for_hf(model, str(tmp_path / "larger"), safe_serialization=safe)
    larger = torch.randn(2, channels, *(2 * side for side in size))
    assert torch.equal(
        timm.create_model(f"local-dir:{tmp_path / 'larger'}", pretrained=True).eval()(larger), model(larger)
    )


def test_a_supernet_of_many_archs_has_no_levels() -> None:
    with pytest.raises(UserError, match="many archs"):
        make_supernet(make_space("deit")).forward_features(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize("name", ["drop_rate", "drop_path_rate"])
@pytest.mark.parametrize("rate", [1, -0.1, float("nan"), "0.1", True])
def test_a_rate_that_is_none_is_refused(name: str, rate: Any) -> None:
    with pytest.raises(UserError, match=f"{name} must be a number from 0 to below 1, not"):
        timm.create_model("raynas_vit", arch="digits/deit", **{name: rate})


def test_device_and_type_are_those_that_are_asked_for(folders: dict[str, Path]) -> None:
    options: dict[str, Any] = {"arch": str(folders["twins"]), "device": "meta", "dtype": torch.bfloat16}
    for model in (timm.create_model("raynas_vit", features_only=part, **options) for part in (False, True)):
        assert {(each.device.type, each.dtype) for each in model.parameters()} == {("meta", torch.bfloat16)}


@pytest.mark.parametrize("indices", ["2", ("a",), [1.5], [99]])
def test_levels_that_are_none_are_refused(indices: Any) -> None:
    with pytest.raises(UserError, match=r"^levels "):
        timm.create_model("raynas_vit", arch="digits/deit", features_only=True, out_indices=indices)


def test_levels_may_be_numpy_s_whole_numbers() -> None:
    levels: dict[str, Any] = {"features_only": True, "out_indices": list(np.arange(2))}
    model: Any = timm.create_model("raynas_vit", arch="digits/deit", **levels)
    assert len(model(torch.zeros(1, *model.pretrained_cfg["input_size"]))) == 2
