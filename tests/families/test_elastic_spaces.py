"""Elastic spaces of every family: the largest arch is the network, in any order of its units; costs are exact."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from raynas.costs import cost
from raynas.errors import UserError
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Space
from raynas.space.elastic import Elastic, check_largest, elastic_space
from tests.costs.flop_counter import count_macs
from tests.families.nets_spaces import DEFINITIONS, make_images, make_space, make_supernet

FREE: dict[str, Any] = {"width": [0.4, 0.7], "heads": [0.3, 0.6], "mlp": [0.3, 0.6], "dropped": 0.5, "divisor": 1}


def made_elastic(network: Space) -> Space:
    """The space of all options that the network can have."""
    options = {**FREE, **({"window": [0.5]} if network.family == "s3" else {})}
    try:
        return elastic_space(network, Elastic(**options))
    except UserError as error:
        held = re.findall(r"(\w+): (0|\[\])", str(error).rpartition("Say ")[2])
        assert held, error
        return elastic_space(network, Elastic(**options | {name: 0 if none == "0" else [] for name, none in held}))


def shuffled(supernet: Supernet) -> Supernet:
    """The supernet with its units in random places."""
    tensors = {**dict(supernet.named_parameters()), **dict(supernet.named_buffers())}
    for group in supernet.exchangeable():
        group.reorder(tensors, torch.randperm(group.count))
    return supernet


@pytest.mark.parametrize("name", DEFINITIONS)
def test_of_random_networks_of_every_family(name: str) -> None:
    """Each is a network of some space with its own weights; the space made of it is checked on four archs."""
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
            archs = [elastic.smallest(), largest, *(elastic.sample(rng) for _ in range(2))]
            computed = cost(elastic, archs)
            for index, each in enumerate(archs):
                subnet = ours.extract(each)
                assert computed["params"][index] == sum(parameter.numel() for parameter in subnet.parameters()), each
                assert computed["macs"][index] == count_macs(subnet, images[:1]), each
                torch.testing.assert_close(subnet(images), ours(images, each), rtol=0, atol=1e-5)
