"""torch compiles an extracted network of every family as one graph, and traces it symbolically."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.fx

from raynas.errors import UserError
from tests.families.nets_spaces import features, make_images, make_space, make_supernet

some_families = pytest.mark.parametrize(
    # The others are slow; test_fx_traces_an_extracted_network has every space.
    "name",
    [
        "s3",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("autoformer", "vitas", "twins", "vit_res", "hybrid")),
    ],
)
every_feature = pytest.mark.parametrize("name", features())


@some_families
def test_an_extracted_network_is_one_graph(name: str) -> None:
    supernet = make_supernet(make_space(name))
    arch = supernet.space.sample(np.random.default_rng(2))
    network = supernet.extract(arch, supernet.sides[-1])
    images = make_images(network.space, 3)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="eager")  # which refuses what breaks the graph
    with torch.no_grad():
        assert torch.equal(compiled(images), network(images))
        torch.testing.assert_close(network(images), supernet(images, arch, side=supernet.sides[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["twins", "hybrid"])
def test_it_trains_as_one_graph(name: str) -> None:
    """Autograd is compiled, too, and stochastic depth; the drawn branches are those of the plain network."""
    supernet = make_supernet(make_space(name))
    network = supernet.extract(supernet.space.smallest()).train()
    network.drop_path, images = 0.3, make_images(network.space, 4)
    plain = copy.deepcopy(network)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for run in (plain, compiled):
        torch.manual_seed(5)
        run(images).square().sum().backward()
    for (parameter, value), other in zip(network.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(value.grad, other.grad, rtol=1e-4, atol=1e-5, msg=parameter)


@every_feature
@pytest.mark.parametrize("training", [False, True])
def test_fx_traces_an_extracted_network(name: str, training: bool) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    for arch in (space.smallest(), space.largest()):
        network = supernet.extract(arch, supernet.sides[-1]).train(training)
        network.drop_path = network.dropout = 0.3 if training else 0.0
        images, plain = make_images(space, 3), copy.deepcopy(network)
        traced = torch.fx.symbolic_trace(network)
        torch.manual_seed(7)
        found = traced(images)
        torch.manual_seed(7)
        assert torch.equal(found, plain(images))
        for buffer, other in zip(network.buffers(), plain.buffers(), strict=True):
            assert torch.equal(buffer, other)  # batch norms move the traced network's own averages
        with pytest.raises(UserError, match="expected images"):
            traced(images[..., :-1])


def test_a_supernet_of_many_archs_is_not_traced() -> None:
    with pytest.raises(UserError, match="has many archs"):
        torch.fx.symbolic_trace(make_supernet(make_space("autoformer")))


@every_feature
def test_what_was_settled_travels_with_the_network(name: str) -> None:
    """A network that another process gets, or that an average is made of, computes the same."""
    space = make_space(name)
    network = make_supernet(space).extract(space.largest())
    images = make_images(space, 2)
    expected = network(images, space.largest())
    assert torch.equal(network(images), expected)
    assert torch.equal(copy.deepcopy(network)(images), expected)
    assert torch.equal(pickle.loads(pickle.dumps(network))(images), expected)
