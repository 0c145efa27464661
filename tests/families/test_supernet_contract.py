"""What every family's supernet owes: an arch is one network, however it runs: sliced, extracted, grouped, masked."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from torch import Tensor

from raynas.costs import cost, scale_to_macs
from raynas.errors import UserError
from raynas.nets.supernet import Ramp, Supernet
from raynas.space import Arch, Space
from tests.families.nets_spaces import DEFINITIONS, make_images, make_space, make_supernet, some_archs

every_space = pytest.mark.parametrize("name", DEFINITIONS)
MASKABLE = [
    "autoformer",
    "clipped rectangle",
    "deit",
    "thirds alone",
    "blocks differ",
    "kept anywhere",
    "vit_res",
    "vit_res plain",
    "s3 maskable",
]
every_execution = pytest.mark.parametrize(
    ("name", "execution"), [(name, "groups") for name in DEFINITIONS] + [(name, "masks") for name in MASKABLE]
)


@every_space
def test_an_extracted_subnet_computes_what_the_supernet_computes(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    images = make_images(space, 2)
    for arch in some_archs(space, 5):
        for side in supernet.sides:
            subnet = supernet.extract(arch, side)
            assert subnet.space == space.fix(arch)
            torch.testing.assert_close(subnet(images), supernet(images, arch, side=side), rtol=0, atol=1e-5)
            torch.testing.assert_close(subnet(images), subnet(images, arch), rtol=0, atol=0)


@every_space
def test_a_subnet_of_its_own_space_costs_what_it_costs_in_the_large_one(name: str) -> None:
    """And it can be drawn, saved, read back and scaled there: its one-point space is a space like any other."""
    space = make_space(name)
    assert Space.from_dict(space.to_dict(), space.name) == space
    for arch in some_archs(space, 4):
        alone = space.fix(arch)
        assert {key: list(each) for key, each in cost(alone, [alone.smallest()]).items()} == {
            key: list(each) for key, each in cost(space, [arch]).items()
        }
        assert Space.from_dict(alone.to_dict(), alone.name) == alone and space.arch(arch.to_dict()) == arch
        assert alone.smallest() == arch == alone.sample(np.random.default_rng(0))
    macs = int(cost(space, [arch])["macs"][0])
    scaled = scale_to_macs(space, arch, macs=2 * macs)
    assert cost(scaled.space, [scaled])["macs"][0] == pytest.approx(2 * macs, rel=0.5)


@every_execution
def test_a_mixed_batch_gives_each_row_its_archs_own_logits(name: str, execution: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    archs = some_archs(space, 5)
    images = make_images(space, 12)
    of_arch, every = torch.stack([supernet(images, arch) for arch in archs]), torch.arange(12)
    own = of_arch[every % 5, every]
    torch.testing.assert_close(supernet(images, archs, execution=execution), own, rtol=0, atol=1e-5)
    rows = torch.tensor([4, 0, 0, 1, 2, 2, 2, 3, 1, 0, 4, 0])
    own = of_arch[rows, every]
    torch.testing.assert_close(supernet(images, archs, rows, execution=execution), own, rtol=0, atol=1e-5)
    torch.testing.assert_close(supernet(images, archs, rows), own, rtol=0, atol=1e-5)


@every_execution
def test_gradients_of_a_mixed_batch_are_the_sum_of_the_separate_passes(name: str, execution: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space).double()
    archs = some_archs(space, 4)[::2]  # not the largest: something is left untouched
    images = make_images(space, 8).double()
    weights = make_images(space, 8, seed=2).double().flatten(1)[:, : space.classes]
    expected: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
    for index, arch in enumerate(archs):
        supernet.zero_grad()
        mine = [i for i in range(8) if i % len(archs) == index]
        (supernet(images[mine], arch) * weights[mine]).sum().backward()
        for parameter_name, gradient in gradients(supernet).items():
            expected[parameter_name] = expected[parameter_name] + gradient
    supernet.zero_grad()
    (supernet(images, archs, execution=execution) * weights).sum().backward()
    found = gradients(supernet)
    assert set(found) == set(expected)
    for parameter_name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[parameter_name], rtol=1e-9, atol=1e-10, msg=parameter_name)


def gradients(supernet: Supernet) -> dict[str, Tensor]:
    """A copy of every gradient that there is."""
    return {name: p.grad.clone() for name, p in supernet.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    # Hybrids normalise each arch by its own rows of a batch in training: test_hybrid_supernet.py.
    ("name", "execution", "over"),
    [(name, "groups", "network") for name in DEFINITIONS if not name.startswith("hybrid")]
    + [(name, "masks", "supernet") for name in MASKABLE],
)
def test_drop_path_is_drawn_for_the_batch_before_it_is_split(name: str, execution: str, over: Ramp) -> None:
    space = make_space(name)
    supernet = make_supernet(space).train()
    supernet.drop_path, supernet.drop_path_over = 0.6, over
    archs = some_archs(space, 4)
    images = make_images(space, 12)
    side = supernet.sides[0]

    def draw(archs: Arch | list[Arch], network: Supernet = supernet, **options: str) -> Tensor:
        torch.manual_seed(3)
        return network(images, archs, side=side, **options)

    mixed = draw(archs, execution=execution)
    for index, arch in enumerate(archs):
        own = draw(arch)
        torch.testing.assert_close(mixed[index::4], own[index::4], rtol=0, atol=1e-5)
        torch.testing.assert_close(draw(arch, supernet.extract(arch)), own, rtol=0, atol=1e-5)
    supernet.drop_path = 0.0
    assert (mixed - draw(archs, execution=execution)).abs().amax(1).gt(1e-3).any()


WITH_TOKEN_HEAD = [name for name, definition in DEFINITIONS.items() if definition["constants"].get("token_head")]


@pytest.mark.parametrize("name", WITH_TOKEN_HEAD)
def test_a_token_head_reads_each_archs_patches_however_the_network_runs(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    archs, images = some_archs(space, 4), make_images(space, 8)
    rows, columns = supernet.token_grid
    own = torch.stack([supernet(images, arch, patches=True) for arch in archs])[torch.arange(8) % 4, torch.arange(8)]
    assert own.shape == (8, 1 + rows * columns, space.classes)
    torch.testing.assert_close(own[:, 0], supernet(images, archs), rtol=0, atol=1e-5)
    for execution in ("groups", "masks") if name in MASKABLE else ("groups",):
        mixed = supernet(images, archs, execution=execution, patches=True)
        torch.testing.assert_close(mixed, own, rtol=0, atol=1e-5)
    for side in supernet.sides:
        subnet = supernet.extract(archs[2], side)
        expected = supernet(images, archs[2], side=side, patches=True)
        torch.testing.assert_close(subnet(images, patches=True), expected, rtol=0, atol=1e-5)


def test_a_network_without_a_token_head_says_so() -> None:
    space = make_space("autoformer")
    with pytest.raises(UserError, match="space autoformer has no token head: set its constant token_head: true"):
        make_supernet(space)(make_images(space, 2), space.largest(), patches=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [("bilateral", "give left or right"), ("autoformer", "sharing: ordinal has one path, leave it out")],
)
def test_a_side_that_is_none_says_what_to_give(name: str, why: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    with pytest.raises(UserError, match=f"no side 'middle' in space {name}: {why}"):
        supernet(make_images(space, 2), space.largest(), side="middle")
    with pytest.raises(UserError, match=f"no side 'middle' in space {name}: {why}"):
        supernet.extract(space.largest(), side="middle")  # type: ignore[arg-type]
