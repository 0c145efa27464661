"""Training-free scores, against small computations by hand, and in networks of every family."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor, nn

from raynas.costs import cost
from raynas.errors import UserError
from raynas.proxies.az_nas import combined, entropy, trainability
from raynas.proxies.dss import dss
from raynas.proxies.naswot import naswot
from raynas.proxies.network import blocks, fresh_network
from raynas.proxies.scorer import PROXIES, ProxyScorer
from raynas.proxies.synflow import synflow
from raynas.search import NSGA2, Evolution, run_search
from raynas.search.objectives import Direction
from raynas.space import Space, load_space

SPACES = ("vit", "twins", "vit_resnas", "s3", "nasvit")
NO_DRAWS = torch.Generator()


class TwoLayers(nn.Module):
    """Two linear layers with a norm between them, for images of three pixels."""

    space = SimpleNamespace(channels=1, input_size=(1, 3))

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 1)
        for parameter, values in zip(
            self.parameters(), ([[1, -2, 3], [0, 1, -1]], [-1, 2], [[2, -3]], [4]), strict=True
        ):
            parameter.data = torch.tensor(values, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(F.layer_norm(self.first(x.flatten(1)), (2,)))


def arch_of(name: str) -> Any:
    return load_space(f"digits/{name}").smallest()


def test_synflow_of_two_linear_layers_by_hand() -> None:
    """|W1| 1 = (6, 2); with |b1| it is (7, 4); each layer passes on 2 x 7 + 3 x 4 = 26, and the last bias adds 4."""
    first, second, first_bias, second_bias = 2 * 6 + 3 * 2, 2 * 7 + 3 * 4, 2 * 1 + 3 * 2, 4
    network: Any = TwoLayers()
    found = synflow(network, torch.empty(0), NO_DRAWS)
    assert found == pytest.approx(math.log(first + second + first_bias + second_bias))


def test_naswot_of_a_network_by_counting() -> None:
    network: Any = fresh_network(arch_of("vit"), 0)
    images, inputs = torch.randn(5, 1, 8, 8), list[Tensor]()
    for block in network.blocks:
        block.fc1.register_forward_hook(lambda _, __, output: inputs.append(output.flatten(1)))
    found = naswot(network, images, NO_DRAWS)
    signs = (torch.cat(inputs, dim=1) > 0).numpy()
    kernel = [[float(sum(a == b for a, b in zip(one, two, strict=True))) for one in signs] for two in signs]
    assert len(inputs) == len(network.blocks) and found == pytest.approx(np.linalg.slogdet(kernel)[1])
    assert naswot(network, images[[0, 0]], NO_DRAWS) == -math.inf


def test_dss_of_a_network_by_singular_values() -> None:
    arch = arch_of("vit")
    network, other = (fresh_network(arch, 3).double() for _ in range(2))
    for parameter in other.parameters():
        parameter.data = parameter.data.abs()
    other(torch.ones(1, 1, 8, 8, dtype=torch.float64)).sum().backward()
    total, singular = 0.0, lambda matrix: np.linalg.svd(matrix.numpy(), compute_uv=False).sum()
    for block in other.blocks:  # type: ignore[union-attr]
        for attention in (block.qkv.weight, block.proj.weight):
            total += singular(attention.data) * singular(attention.grad)
        total += sum(float((mlp.data * mlp.grad).abs().sum()) for mlp in (block.fc1.weight, block.fc2.weight))
    assert dss(network, torch.empty(0), NO_DRAWS) == pytest.approx(math.log(total))


def test_entropy_of_principal_axes() -> None:
    square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    assert entropy(square + 7) == pytest.approx(math.log(2))
    assert entropy(square * torch.tensor([1.0, 0.0])) == pytest.approx(0, abs=1e-6)
    features = torch.randn(50, 6) @ torch.randn(6, 6)
    shares = np.linalg.eigvalsh(np.cov(features.numpy().T))
    assert entropy(features) == pytest.approx(stats.entropy(shares), rel=1e-4)


def test_trainability_of_known_jacobians() -> None:
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randn(2, 3, 1, requires_grad=True)
    assert trainability(tokens, 3 * tokens, draw) == pytest.approx(2 - 3 - 1 / 3, abs=1e-4)
    images = torch.randn(
        2, 1, 4, 4, requires_grad=True
    )  # the mean of four pixels: four slopes of a quarter, length 1/2
    assert trainability(images, F.avg_pool2d(images, 2), draw) == pytest.approx(2 - 0.5 - 1 / 0.5, abs=1e-4)
    many = torch.randn(40_000, 1, 4, requires_grad=True)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=draw))[0]
    assert trainability(many, many @ turn, draw) == pytest.approx(0, abs=1e-3)


def test_ranks_are_combined_as_scipy_ranks() -> None:
    reference = [{"a": a, "b": b} for a, b in ((1.0, 5.0), (2.0, 5.0), (3.0, 1.0))]
    wanted = 0.0
    for name, value in (("a", 2.0), ("b", 9.0)):
        wanted += math.log(stats.rankdata([*(each[name] for each in reference), value])[-1] / 4)
    assert combined({"a": 2.0, "b": 9.0}, reference) == pytest.approx(wanted)
    assert math.isnan(combined({"a": 2.0, "b": math.nan}, reference))
    assert combined({"a": 2.0, "b": 9.0}, [*reference, {"a": math.nan, "b": math.nan}]) == pytest.approx(wanted)


def test_a_network_without_blocks_is_the_worst_and_ends_nothing() -> None:
    blocks = {"repeat": 2, "kept": [False, True], "heads": [1], "mlp_ratio": [2]}
    dimensions = {"patch_size": [4], "width": [8], "blocks": blocks}
    constants = {"head_dim": 4}
    space = Space.from_dict({"family": "vit", "input": {"size": 8, "channels": 1}, "classes": 3,
                             "constants": constants, "dimensions": dimensions})  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for proxy in ("dss", "naswot", "az_nas"):
            none, full = ProxyScorer(space, proxy, reference=3).score([space.smallest(), space.largest()])
            assert (math.isnan(none) if proxy == "az_nas" else none == -math.inf) and math.isfinite(full)


@pytest.mark.parametrize("name", SPACES)
def test_every_family_has_every_score(name: str) -> None:
    """The same for the same seed, whatever is scored beside it; larger for the largest network, but for AZ-NAS."""
    space = load_space(f"digits/{name}")
    archs = [space.smallest(), space.sample(np.random.default_rng(0)), space.largest()]
    for proxy in PROXIES:
        torch.manual_seed(0)
        values = ProxyScorer(space, proxy, reference=2).score(archs)
        torch.manual_seed(1)
        assert ProxyScorer(space, proxy, reference=2).score(archs[1:2]) == values[1:2]
        assert np.isfinite(values).all()
        if proxy in ("params", "macs"):
            assert values == cost(space, archs)[proxy].tolist()
        elif proxy != "az_nas":
            assert values[0] < values[2]
            assert ProxyScorer(space, proxy, seed=5).score(archs[1:2]) != values[1:2]


@pytest.mark.parametrize("name", SPACES)
def test_blocks_are_those_that_run(name: str) -> None:
    arch = load_space(f"digits/{name}").largest()
    network, ran = fresh_network(arch, 0), list[Any]()
    for block in blocks(network):
        block.register_forward_hook(lambda module, *_: ran.append(module))
    network(torch.randn(2, *(1, 8, 8)))
    assert ran == blocks(network) and len(ran) == len(network.places(network.space.smallest()))


def test_fresh_networks_leave_the_random_stream_alone() -> None:
    torch.manual_seed(4)
    first = torch.rand(3)
    torch.manual_seed(4)
    one, two = (fresh_network(arch_of("vit"), 7).state_dict() for _ in range(2))
    assert (torch.rand(3) == first).all()
    assert all((one[key] == two[key]).all() for key in one)


def test_a_search_by_a_proxy() -> None:
    space = load_space("digits/vit")
    search = Evolution(space, {"synflow": "max"}, {"macs": (None, 1.2e6)}, evaluations=12, population=6, parents=3)
    scorer = ProxyScorer(space, "synflow")
    best = run_search(search, scorer).best()
    asked = [row.arch for row in search.history]
    assert len(asked) == 12 and best == max(asked, key=lambda arch: scorer.score([arch])[0])


@pytest.mark.parametrize("objectives", [{"dss": "max"}, {"accuracy": "max"}, {"synflow": "max", "loss": "min"}])
def test_a_search_by_another_objective_is_refused(objectives: dict[str, Direction]) -> None:
    """The numbers of one judge would be stored under the name of another."""
    space = load_space("digits/vit")
    search = NSGA2(space, objectives, evaluations=12, population=6)
    with pytest.raises(UserError, match=r"objective is '\w+', and this scorer gives 'synflow'"):
        run_search(search, ProxyScorer(space, "synflow"))
    assert not search.history


def test_what_is_refused() -> None:
    space = load_space("digits/vit")
    with pytest.raises(UserError, match=r"unknown proxy 'synflo' \(did you mean 'synflow'\?\)"):
        ProxyScorer(space, "synflo")
    with pytest.raises(UserError, match=r"expected images \[n, 1, 8, 8\], found \[4, 3, 8, 8\]"):
        ProxyScorer(space, "naswot", torch.zeros(4, 3, 8, 8))
    with pytest.raises(UserError, match=r"patch_size = 8 is not among its choices"):
        ProxyScorer(space, "params").score([load_space("clutter/vit").smallest()])


def test_parts_of_az_nas_grow_with_width_alone() -> None:
    """A network of one width has no progress of entropy to speak of, so the release leaves it out for AutoFormer."""
    found = {name: set(PROXIES["az_nas"](fresh_network(arch_of(name), 0), torch.randn(4, 1, 8, 8), NO_DRAWS))  # type: ignore[arg-type]
             for name in ("vit", "s3")}  # fmt: skip
    assert found["s3"] - found["vit"] == {"progressivity"} and len(found["vit"]) == 3
