"""Importance of units and blocks, against definitions written out, and what ordering is good for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.costs import cost
from raynas.data.embedded import digits
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.ordering import IMPORTANCES, Importance, block_importance, importances, order_units
from raynas.nets.supernet import Supernet
from raynas.nets.units import UnitGroup
from raynas.nets.weights import load_supernet
from raynas.space import Space
from raynas.space.elastic import Elastic, elastic_space
from tests.families.nets_spaces import make_images, make_space, make_supernet


def group_with(supernet: Supernet, name: str, dim: int) -> UnitGroup:
    return next(g for g in supernet.exchangeable() if any(axis[:2] == (name, dim) for axis in g.axes))


@pytest.mark.parametrize("how", ["magnitude", "taylor", "activation", "random"])
@pytest.mark.parametrize("name", ["deit", "cait distilled", "s3", "vit_res", "twins heads", "hybrid"])
def test_ordering_is_exact_and_descending(name: str, how: Importance) -> None:
    space = make_space(name)
    supernet, images = make_supernet(space), make_images(space, 6)
    labels = torch.arange(6) % space.classes
    with torch.no_grad():
        before = supernet(images, space.largest())
        order_units(supernet, how, images, labels, batch=3)
        torch.testing.assert_close(supernet(images, space.largest()), before, rtol=0, atol=1e-5)
    if how != "random":
        for found in importances(supernet, supernet.exchangeable(), how, images, labels, batch=3):
            assert (found.diff() <= 1e-4 * found.max()).all() and found.min() >= 0 and found.max() > 0


def deit() -> tuple[Supernet, Tensor, Tensor]:
    space = make_space("deit")
    return make_supernet(space), make_images(space, 8), torch.arange(8) % space.classes


def test_magnitude_is_the_sum_of_absolute_weights() -> None:
    supernet, *_ = deit()
    group = group_with(supernet, "blocks.1.proj.weight", 1)
    state = supernet.state_dict()
    rows = state["blocks.1.qkv.weight"].abs().sum(1) + state["blocks.1.qkv.bias"].abs()
    expected = rows.view(3, 24).sum(1) + state["blocks.1.proj.weight"].abs().sum(0).view(3, 8).sum(1)
    torch.testing.assert_close(importances(supernet, [group], "magnitude")[0], expected)


def test_taylor_is_the_squared_change_to_first_order() -> None:
    """Of every batch: with a gate on each hidden channel's weights, the gradient of the loss by the gates."""
    supernet, images, labels = deit()
    group = group_with(supernet, "blocks.0.fc2.weight", 1)
    (found,) = importances(supernet, [group], "taylor", images, labels, batch=4)
    largest, total = supernet.space.largest(), torch.zeros(group.count)
    held = {name: tensor.detach() for name, tensor in supernet.named_parameters()}
    for part in (slice(0, 4), slice(4, 8)):
        gates = torch.ones(group.count, requires_grad=True)
        gated = {name: held[f"blocks.0.{name}"] for name in ("fc1.weight", "fc1.bias", "fc2.weight")}
        gated = {"fc1.weight": gates[:, None] * gated["fc1.weight"], "fc1.bias": gates * gated["fc1.bias"]} | {
            "fc2.weight": gates * gated["fc2.weight"]
        }
        named = {f"blocks.0.{name}": tensor for name, tensor in gated.items()}
        logits = torch.func.functional_call(supernet, named, (images[part], largest))
        F.cross_entropy(logits, labels[part], reduction="sum").backward()
        assert gates.grad is not None
        total += gates.grad.square()
    torch.testing.assert_close(found, total, rtol=1e-4, atol=1e-8)


def test_without_labels_it_is_the_change_of_the_logits_on_average() -> None:
    """Of the residual channels, which are in nearly every tensor: gates on all of them, by the Jacobian."""
    supernet, images, _ = deit()
    (group,) = (each for each in supernet.exchangeable() if each.kind == "width")
    held = {name: tensor.detach() for name, tensor in supernet.named_parameters()}

    def logits(gates: Tensor) -> Tensor:
        gated = dict(held)
        for axis in group.axes:
            shape = [1] * gated[axis.name].ndim
            shape[axis.dim] = -1
            gated[axis.name] = gated[axis.name] * gates.repeat_interleave(axis.entries).view(shape)
        return torch.func.functional_call(supernet, gated, (images, supernet.space.largest()))

    jacobian: Any = torch.func.jacrev(logits)(torch.ones(group.count))  # [images, classes, units]
    expected = jacobian.square().sum((0, 1))
    draws = [
        importances(supernet, [group], "taylor", images, rng=np.random.default_rng(seed))[0] for seed in range(150)
    ]
    torch.testing.assert_close(torch.stack(draws).mean(0), expected, rtol=0.5, atol=0)
    assert np.corrcoef(torch.stack(draws).mean(0), expected)[0, 1] > 0.95


def test_activation_is_the_mean_absolute_input_of_what_reads_the_units() -> None:
    supernet, images, _ = deit()
    group, seen = group_with(supernet, "blocks.2.fc2.weight", 1), []
    (found,) = importances(supernet, [group], "activation", images, batch=3)
    hook = supernet.get_submodule("blocks.2.fc2").register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    supernet(images, supernet.space.largest())
    hook.remove()
    means = seen[0][0].abs().mean((0, 1)).detach()
    torch.testing.assert_close(found.float(), means / means.mean(), rtol=1e-4, atol=0)
    with torch.no_grad():
        for leaf in ("weight", "bias"):
            supernet.get_parameter(f"blocks.2.fc1.{leaf}").zero_()
    (dead,) = importances(supernet, [group], "activation", images)
    assert torch.equal(dead, torch.zeros(group.count))  # of which an order could be made, as of NaN it could not


def test_mistakes_are_named() -> None:
    supernet, images, labels = deit()
    cyclic = make_supernet(make_space("cyclic"))
    for network, given, message in (
        (supernet, ("tailor",), "no importance 'tailor' .*'taylor'"),
        (supernet, ("taylor",), "importance taylor needs images"),
        (supernet, ("taylor", images, labels[:3]), "8 images, but 3 labels"),
        (cyclic, ("magnitude",), "narrow widths are the first channels with sharing: ordinal alone"),
    ):
        with pytest.raises(UserError, match=message):
            order_units(network, *given)  # type: ignore[arg-type]


@pytest.mark.parametrize("labelled", [True, False])
def test_the_least_important_block_is_one_that_does_nothing(labelled: bool) -> None:
    space = make_space("kept anywhere")
    supernet, images = make_supernet(space), make_images(space, 8)
    labels = torch.arange(8) % space.classes if labelled else None
    with torch.no_grad():
        for layer in ("proj", "fc2"):
            for parameter in supernet.get_submodule(f"blocks.2.{layer}").parameters():
                parameter.zero_()
    found = block_importance(supernet, images, labels, batch=3)
    assert sorted(found) == [f"blocks.{i}" for i in range(4)] and list(found.values()) == sorted(found.values())
    assert found["blocks.2"] == pytest.approx(0, abs=1e-6)
    if not labelled:
        assert next(iter(found)) == "blocks.2"


@pytest.fixture(scope="module")
def trained() -> tuple[Supernet, Tensor, Tensor, Tensor, Tensor]:
    """A small network that knows the digits, and images and labels to order by and to test on."""
    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 8, "class_token": False, "pool": "mean"},
            "dimensions": {
                "patch_size": [2],
                "width": [32],
                "depth": [3],
                "blocks": {"heads": [4], "mlp_ratio": [4.0]},
            },
        }
    )
    pixels, labels = (torch.from_numpy(each) for each in digits())
    images = (pixels / 255 - 0.3) / 0.37
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    torch.manual_seed(0)
    network = build_supernet(space).train()
    for parameter in network.parameters():  # narrow networks learn from such weights within seconds
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    optimizer = torch.optim.AdamW(network.parameters(), 5e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=10 * 21, pct_start=0.15)
    for _ in range(10):
        for batch in torch.randperm(1400).split(64)[:21]:
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    return network.eval(), images[:512], labels[:512], images[1400:], labels[1400:]


@pytest.mark.slow
def test_ordered_units_help_narrow_subnets(trained: tuple[Supernet, Tensor, Tensor, Tensor, Tensor]) -> None:
    """The mean accuracy of 16 subnets of about half of the MACs, without training, is above that of 5 random orders."""
    network, images, labels, test_images, test_labels = trained
    space = elastic_space(network.space, Elastic(divisor=4))
    half = int(cost(space, [space.largest()])["macs"][0]) / 2
    drawn = space.decode(space.sample_codes(np.random.default_rng(0), 500))
    archs = [arch for arch, macs in zip(drawn, cost(space, drawn)["macs"], strict=True) if abs(macs / half - 1) < 0.1]

    def score(how: Importance, *given: Tensor, seed: int = 0) -> float:
        state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        supernet = load_supernet(space, state).eval()
        order_units(supernet, how, *given, rng=np.random.default_rng(seed))
        with torch.no_grad():
            right = [supernet(test_images, arch).argmax(1) == test_labels for arch in archs[:16]]
        return float(torch.stack(right).float().mean())

    with torch.no_grad():
        assert (network(test_images).argmax(1) == test_labels).float().mean() > 0.9 and len(archs) >= 16
    random = [score("random", seed=seed) for seed in range(5)]
    found: dict[str, float] = {how: score(how, images, labels) for how in IMPORTANCES if how != "random"}
    found["taylor without labels"] = score("taylor", images)
    assert min(found.values()) > max(random), (found, random)  # 0.55 to 0.62, and 0.40 to 0.51
    assert found["taylor"] > sum(random) / 5 + 0.08
