"""Elastic spaces of every family: the largest arch is the network, in any order of its units; costs are exact."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.swin_transformer import SwinTransformer
from timm.models.twins import Twins
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from raynas.costs import cost
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Space
from raynas.space.elastic import Elastic, check_largest, elastic_space
from raynas.space.families import family_module
from tests.costs.flop_counter import count_macs
from tests.families.nets_spaces import features, make_images, make_space, make_supernet
from tests.families.timm_parts import randomised

FREE: dict[str, Any] = {"width": [0.4, 0.7], "heads": [0.3, 0.6], "mlp": [0.3, 0.6], "dropped": 0.5, "divisor": 1}


def made_elastic(network: Space) -> Space:
    """The space of all options that the network can have."""
    options = {**FREE, **({"window": [0.5]} if network.family == "s3" else {})}
    try:
        return elastic_space(network, Elastic(**options))
    except UserError as error:
        held = re.findall(r"--set adapt\.elastic\.(\w+)=(0|\[\])", str(error))
        assert held, error
        return elastic_space(network, Elastic(**options | {name: 0 if none == "0" else [] for name, none in held}))


def shuffled(supernet: Supernet) -> Supernet:
    """The supernet with its units in random places."""
    tensors = {**dict(supernet.named_parameters()), **dict(supernet.named_buffers())}
    for group in supernet.exchangeable():
        group.reorder(tensors, torch.randperm(group.count))
    return supernet


@pytest.mark.parametrize("name", features())
def test_of_random_networks_of_every_family(name: str) -> None:
    """Each is a network of some space with its own weights; the space made of it is checked on three archs."""
    space, rng = make_space(name), np.random.default_rng(0)
    supernet = make_supernet(space)
    for arch in (space.largest(), space.sample(rng)):
        network = supernet.extract(arch)
        elastic = made_elastic(network.space)
        check_largest(elastic, network.space)
        assert Space.from_dict(elastic.to_dict()) == elastic and elastic.cardinality() > 1
        ours, images = load_supernet(elastic, network.state_dict()).eval(), make_images(elastic, 2)
        with torch.no_grad():
            expected, largest = network(images), elastic.largest()
            torch.testing.assert_close(ours(images, largest), expected, rtol=0, atol=1e-5)
            torch.testing.assert_close(shuffled(ours)(images, largest), expected, rtol=0, atol=1e-5)
            archs = [elastic.smallest(), *(elastic.sample(rng) for _ in range(2))]
            computed = cost(elastic, archs)
            for index, each in enumerate(archs):
                subnet = ours.extract(each)
                assert computed["params"][index] == sum(parameter.numel() for parameter in subnet.parameters()), each
                assert computed["macs"][index] == count_macs(subnet, images[:1]), each
                torch.testing.assert_close(subnet(images), ours(images, each), rtol=0, atol=1e-5)


VIT: dict[str, Any] = {"img_size": 28, "num_classes": 9, "embed_dim": 48, "depth": 4, "num_heads": 4}
SWIN: dict[str, Any] = {"img_size": 32, "patch_size": 2, "num_classes": 9, "embed_dim": 16, "num_heads": (2, 4)}
TWINS: dict[str, Any] = {"img_size": 32, "num_classes": 9, "embed_dims": (16, 32), "mlp_ratios": (2, 3)}
OF_TIMM: dict[str, tuple[str, type[nn.Module], dict[str, Any]]] = {
    "patches of 14": ("vit", VisionTransformer, VIT | {"patch_size": 14}),
    "dinov2": ("vit", VisionTransformer, VIT | {"patch_size": 7, "init_values": 0.1}),
    "deit3": ("vit", VisionTransformer, VIT | {"patch_size": 7, "init_values": 0.1, "no_embed_class": True}),
    "distilled": ("vit", VisionTransformerDistilled, VIT | {"patch_size": 7}),
    "mean": ("vit", VisionTransformer, VIT | {"patch_size": 4, "global_pool": "avg", "fc_norm": False}),
    "swin": ("s3", SwinTransformer, SWIN | {"depths": (2, 4), "window_size": 4}),
    "s3": ("s3", SwinTransformer, SWIN | {"depths": (2, 2), "window_size": ((4, 4), (8, 8))}),
    "twins": ("twins", Twins, TWINS | {"num_heads": (2, 4), "depths": (2, 4), "wss": (4, 4), "sr_ratios": (4, 2)}),
}


@pytest.mark.parametrize("name", OF_TIMM)
def test_the_largest_arch_is_timms_network_and_all_heads_can_go(name: str) -> None:
    family, kind, options = OF_TIMM[name]
    torch.manual_seed(0)
    model = randomised(kind(**options))
    space, state = family_module(family, "checkpoint").read_timm(model, "model")
    elastic = elastic_space(space)
    supernet, images = shuffled(load_supernet(elastic, state).eval()), make_images(space, 3)
    with torch.no_grad():
        torch.testing.assert_close(supernet(images, elastic.largest()), model(images), rtol=0, atol=1e-5)
    heads = [dimension for dimension in elastic.dimensions if dimension.name.endswith("heads")]
    assert len(heads) == len([d for d in elastic.dimensions if d.name.endswith("kept")]) > 2
    assert all(len(dimension.choices) > 1 for dimension in heads)
    assert 4 * cost(elastic, [elastic.smallest()])["macs"][0] < cost(elastic, [elastic.largest()])["macs"][0]
