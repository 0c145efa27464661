"""Pyramids: the network's own levels, at any image size, with its own parameters."""

from __future__ import annotations

import copy
from typing import Any, cast

import pytest
import timm
import torch

import raynas.timm  # noqa: F401  registers the networks
from raynas.downstream import counts, fcos, mask_rcnn, retinanet, semantic_fpn
from raynas.downstream.pyramid import AnySize, Pyramid
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Space, load_arch
from tests.families.nets_spaces import make_space, make_supernet, some_archs

STAGES = ["twins", "s3", "s3 bilateral", "vit_res", "vit_res plain"]
PLAIN = ["deit", "autoformer", "distilled"]


def space_of(pyramid: Pyramid) -> Space:
    return cast(AnySize, pyramid.body).network.space


def subnet(name: str) -> Supernet:
    space = make_space(name)
    return make_supernet(space).extract(some_archs(space, 3)[-1])


@pytest.mark.parametrize("name", [*STAGES, *PLAIN])
def test_images_of_another_size_are_taken_as_by_the_resized_network(name: str) -> None:
    network = subnet(name)
    height, width = network.space.input_size
    bodies = AnySize(network)
    indices = list(range(len(network.levels())))
    for size in ((height, width), (2 * height, width), (3 * height, 2 * width)):
        images = torch.randn(2, network.space.channels, *size)
        with torch.no_grad():
            expected = network.resized(size).forward_intermediates(images, intermediates_only=True)
            for found, wanted in zip(bodies(images, indices), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [*STAGES, *PLAIN])
def test_parameters_are_trained_whatever_the_size(name: str) -> None:
    """By every size the same parameters, and tables of positions too; a step changes what all sizes compute."""
    pyramid = Pyramid(subnet(name).train())
    height, width = space_of(pyramid).input_size
    larger = torch.randn(2, space_of(pyramid).channels, 2 * height, 2 * width)
    before = [each.detach().clone() for each in pyramid(larger).values()]
    loss = sum(each.square().mean() for each in pyramid(larger).values())
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    without = {key for key, parameter in pyramid.named_parameters() if parameter.grad is None}
    assert not {key for key in without if "head" not in key and "class_token" not in key}
    with torch.no_grad():
        for parameter in pyramid.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.1 * parameter.grad.sign())
    assert all(not torch.equal(a, b) for a, b in zip(before, pyramid(larger).values(), strict=True))
    copied = copy.deepcopy(pyramid).double()
    for a, b in zip(copied(larger.double()).values(), pyramid(larger).values(), strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-3, atol=1e-4)


def test_running_averages_are_the_networks_own_at_any_size() -> None:
    network = subnet("vit_res").train()
    pyramid = Pyramid(network)
    before = network.get_buffer("stem.first.norm.running_mean").clone()
    pyramid(torch.randn(2, 3, 48, 32))
    assert not torch.equal(before, network.get_buffer("stem.first.norm.running_mean"))


@pytest.mark.parametrize("name", [*STAGES, *PLAIN])
def test_maps_are_as_large_as_their_tokens_say(name: str) -> None:
    pyramid = Pyramid(subnet(name))
    size = [2 * side for side in space_of(pyramid).input_size]
    maps = pyramid(torch.randn(1, space_of(pyramid).channels, *size))
    assert list(maps) == [str(index) for index in range(len(pyramid.channels))]
    for found, channels, reduction in zip(maps.values(), pyramid.channels, pyramid.reductions, strict=True):
        assert found.shape == (1, channels, *(-(-side // reduction) for side in size))
    if name in PLAIN:
        assert pyramid.reductions == [4, 8, 16, 32][: len(pyramid.reductions)]


def test_timms_swin_whose_channels_are_last() -> None:
    """The maps are those that timm's own `forward_intermediates` puts in front."""
    small: dict[str, Any] = {"img_size": 64, "embed_dim": 8, "depths": (1, 1, 1), "num_heads": (1, 2, 4)}
    features = timm.create_model("swin_tiny_patch4_window7_224", features_only=True, out_indices=(0, 1, 2), **small)
    model: Any = timm.create_model("swin_tiny_patch4_window7_224", **small).eval()
    images = torch.randn(1, 3, 64, 64)
    pyramid = Pyramid(features).eval()
    model.load_state_dict(
        {key.replace("layers_", "layers."): each for key, each in features.state_dict().items()}, False
    )
    with torch.no_grad():
        maps = list(pyramid(images).values())
        wanted = model.forward_intermediates(images, intermediates_only=True)
        assert all(map(torch.equal, maps, wanted)) and len(maps) == 3
        assert semantic_fpn(pyramid, 5, 8, 8).eval()(images).shape == (1, 5, 64, 64)


def test_networks_of_timm() -> None:
    images = torch.randn(1, 3, 64, 96)
    other = timm.create_model("resnet10t", features_only=True, out_indices=(1, 2, 3, 4))
    assert [tuple(each.shape[2:]) for each in Pyramid(other)(images).values()] == [(16, 24), (8, 12), (4, 6), (2, 3)]
    ours = timm.create_model("raynas_vit", arch="s3/published/tiny", features_only=True, out_indices=(1, 2))
    pyramid = Pyramid(ours)
    assert pyramid.channels == [192, 384] and pyramid.reductions == [8, 16]
    assert [tuple(each.shape) for each in pyramid(images).values()] == [(1, 192, 8, 12), (1, 384, 4, 6)]


def test_batches_as_large_as_those_of_coco() -> None:
    with torch.device("meta"):
        maps = Pyramid(build_supernet(load_arch("s3/published/tiny").space))(torch.empty(1, 3, 800, 1344))
    assert [tuple(each.shape[2:]) for each in maps.values()] == [(200, 336), (100, 168), (50, 84), (25, 42)]


def test_windows_that_scale_with_the_images_do_so_at_every_size() -> None:
    block = {"window": [2], "heads": [1], "mlp_ratio": [1.0]}
    stages = [{"width": [4], "depth": [1], "blocks": block}]
    given: dict[str, Any] = {"constants": {"patch_size": 2, "head_dim": 4}, "dimensions": {"stages": stages}}
    space = Space.from_dict({"family": "s3", "input": {"size": 8, "channels": 1}, "classes": 2, **given})
    network = make_supernet(space).resized(16, scaled=True)
    images = torch.randn(1, 1, 32, 32)
    found = AnySize(network)(images, [0])[0]
    with torch.no_grad():
        expected = network.resized(32).forward_intermediates(images, intermediates_only=True)[0]
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert network.get_parameter("stages.0.blocks.0.bias.table").grad is not None


def test_a_network_that_resizes_images_takes_them_as_they_are() -> None:
    space = make_space("hybrid")
    height, width = space.input_size
    network = make_supernet(space).extract({**space.largest(), "resolution": 7})
    sides = network.unscaled().space.input_size
    assert sides != (height, width)
    images = torch.randn(2, space.channels, height, width)
    smaller = torch.nn.functional.interpolate(images, sides, mode="bicubic", align_corners=False)
    with torch.no_grad():
        torch.testing.assert_close(network.unscaled()(smaller), network(images))
    arch = load_arch("nasvit/published/a1")
    with torch.device("meta"):
        pyramid = Pyramid(build_supernet(arch.space.fix(arch)))
        maps = pyramid(torch.empty(1, 3, 512, 768))
    assert pyramid.reductions == [4, 8, 16, 32]
    assert [tuple(each.shape[2:]) for each in maps.values()] == [(128, 192), (64, 96), (32, 48), (16, 24)]


def test_what_gives_no_maps_is_refused() -> None:
    with pytest.raises(UserError, match="gives no maps"):
        Pyramid(torch.nn.Linear(2, 2))
    with pytest.raises(UserError, match="many archs"):
        Pyramid(make_supernet(make_space("s3")))
    with pytest.raises(UserError, match="give the levels to timm"):
        Pyramid(timm.create_model("resnet10t", features_only=True), out_indices=(1, 2))
    with pytest.raises(UserError, match="numbered from 0"):
        Pyramid(subnet("s3"), out_indices=(7,))
    with pytest.raises(UserError, match="name each level once"):
        Pyramid(subnet("s3"), out_indices=(1, 1))
    for make in (retinanet, fcos, mask_rcnn, semantic_fpn):
        with pytest.raises(UserError, match=r"classes 0: give a whole number from 1"):
            make(subnet("s3"), classes=0)
    with pytest.raises(UserError, match="give height and width"):
        counts(semantic_fpn(subnet("s3"), classes=2), size=(32,))  # type: ignore[arg-type]


def test_another_size_is_exported_once_it_has_been_seen() -> None:
    pyramid = Pyramid(subnet("s3").eval())
    height, width = space_of(pyramid).input_size
    images = torch.randn(1, space_of(pyramid).channels, 2 * height, width)
    with pytest.raises(UserError, match="call it once on images of"):
        torch.export.export(pyramid, (images,))
    with torch.no_grad():
        expected = pyramid(images)
        found = torch.export.export(pyramid, (images,)).module()(images)
    for name, wanted in expected.items():
        torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_options_that_torchvision_would_ignore_are_refused() -> None:
    network = build_supernet(subnet("s3").space.with_input(channels=1))
    grey: dict[str, Any] = {"image_mean": [0.5], "image_std": [0.5]}
    with pytest.raises(UserError, match=r"FCOS has no option 'min_sizes' \(did you mean 'min_size'\?\)"):
        fcos(network, classes=3, **grey, min_sizes=64)
    with pytest.raises(UserError, match="give image_mean and image_std, 1 numbers each"):
        mask_rcnn(network, classes=3)


def test_detectors_normalise_images_as_the_networks_were() -> None:
    network = build_supernet(subnet("s3").space.with_input(channels=1))
    network.pretrained_cfg = {**network.pretrained_cfg, "mean": (0.25,), "std": (0.5,)}
    for make in (retinanet, fcos, mask_rcnn):
        transform = make(copy.deepcopy(network), classes=3, width=32).transform
        assert (transform.image_mean, transform.image_std) == ([0.25], [0.5])
    assert fcos(network, 3, 32, image_mean=[0.1], image_std=[0.2]).transform.image_mean == [0.1]
    theirs = timm.create_model("vit_tiny_patch16_224", img_size=32, features_only=True, out_indices=(1, 2))
    assert fcos(theirs, 3, 32).transform.image_mean == [0.5, 0.5, 0.5]  # not ImageNet's


def test_a_detector_without_the_finest_map_needs_another() -> None:
    for make in (retinanet, fcos):
        with pytest.raises(UserError, match="gives one map"):
            make(Pyramid(subnet("s3"), (-1,)), 3, 32)


def test_regions_are_cut_out_of_maps_without_a_gap() -> None:
    """torchvision leaves the features of large boxes zero at a gap, and rounds tokens of 3 pixels to 4."""
    network = subnet("s3")
    assert [level.reduction for level in network.levels()] == [2, 4, 8]
    with pytest.raises(UserError, match=r"tokens of 2, 8 pixels: .* without a gap"):
        mask_rcnn(Pyramid(network, (0, 2)), 3, 32)
    block = {"window": [2], "heads": [1], "mlp_ratio": [1.0]}
    stages = [{"width": [4], "depth": [1], "blocks": block}] * 2
    given: dict[str, Any] = {"constants": {"patch_size": 3, "head_dim": 4}, "dimensions": {"stages": stages}}
    space = Space.from_dict({"family": "s3", "input": {"size": 12, "channels": 3}, "classes": 2, **given})
    with pytest.raises(UserError, match="tokens of 3, 6 pixels"):
        mask_rcnn(build_supernet(space), 3, 32)
    alike = timm.create_model("vit_tiny_patch16_224", img_size=32, features_only=True, out_indices=(1, 2))
    assert mask_rcnn(alike, 3, 32).backbone.reductions == [16, 16]  # all regions are taken from the first
