"""Networks for images of another size: positions resized as released, all else as it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from timm.layers import resample_abs_pos_embed

from raynas.costs import cost
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.nets.layers import resize_positions
from raynas.space import load_arch
from tests.families.nets_spaces import DEFINITIONS, features, make_images, make_space, make_supernet, some_archs

GOLDEN = Path(__file__).parents[1] / "golden" / "resnas_pos_embed_interp.npz"
BUDGET = "stacked to a budget"
ONE_SIZE = ("hybrid", "hybrid bilateral")  # they cannot be resized: test_hybrid_supernet.py
every_feature = pytest.mark.parametrize(
    "name", features(name for name in DEFINITIONS if name not in (BUDGET, *ONE_SIZE))
)


@pytest.mark.parametrize(
    ("table", "before", "after"), [("pos_embed", 16, 24), ("blocks.1.pos_embed", 8, 12), ("blocks.3.pos_embed", 4, 6)]
)
def test_positions_are_resized_as_in_the_release(table: str, before: int, after: int) -> None:
    golden = {name: torch.from_numpy(array) for name, array in np.load(GOLDEN).items()}
    resized = resize_positions(golden[f"src224/{table}"], (before, before), (after, after))
    torch.testing.assert_close(resized, golden[f"dst336/{table}"], rtol=0, atol=1e-7)


@pytest.mark.parametrize("class_token", [True, False])
def test_positions_are_resized_as_by_timm(class_token: bool) -> None:
    table = torch.randn(1, class_token + 6 * 4, 5)
    expected = resample_abs_pos_embed(table, [9, 10], [6, 4], num_prefix_tokens=int(class_token), antialias=False)
    torch.testing.assert_close(resize_positions(table, (6, 4), (9, 10)), expected)


@every_feature
def test_a_resized_supernet_gives_out_the_resized_subnets(name: str) -> None:
    space = make_space(name)
    supernet = make_supernet(space)
    size = (2 * space.input_size[0], 2 * space.input_size[1])
    larger = supernet.resized(size)
    images = make_images(larger.space, 2)
    for arch in some_archs(space, 4):
        for side in supernet.sides:
            subnet = supernet.extract(arch, side).resized(size)
            with torch.inference_mode():
                expected, found = larger(images, arch, side=side), subnet(images)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        counted = sum(parameter.numel() for parameter in supernet.extract(arch).resized(size).parameters())
        assert counted == cost(larger.space, [arch])["params"][0]


@every_feature
def test_only_positions_change(name: str) -> None:
    supernet = make_supernet(make_space(name))
    height, width = supernet.space.input_size
    larger = supernet.resized((2 * height, 2 * width))
    before, after = supernet.state_dict(), larger.state_dict()
    same = {tensor for tensor in before if before[tensor].shape == after[tensor].shape}
    grids = larger.position_grids()
    changed = {table for table, grid in supernet.position_grids().items() if grids[table] != grid}
    assert before.keys() == after.keys() and before.keys() - same == changed
    assert all(torch.equal(before[tensor], after[tensor]) for tensor in same)
    assert all(before[tensor].data_ptr() != after[tensor].data_ptr() for tensor in same)


@every_feature
def test_the_same_size_is_the_same_network(name: str) -> None:
    supernet = make_supernet(make_space(name))
    again = supernet.resized(supernet.space.input_size)
    assert again.space == supernet.space and not again.training
    assert all(torch.equal(tensor, again.state_dict()[key]) for key, tensor in supernet.state_dict().items())


def test_a_depth_that_followed_from_a_budget_stays() -> None:
    space = make_space(BUDGET)
    supernet = make_supernet(space)
    for arch in some_archs(space, 4):
        subnet = supernet.extract(arch)
        larger = subnet.resized(16)
        assert larger.state_dict().keys() == subnet.state_dict().keys()
        assert larger.space.smallest() == arch
        costs = cost(larger.space, [arch])
        assert costs["params"][0] == sum(parameter.numel() for parameter in larger.parameters())
        assert costs["macs"][0] > cost(space, [arch])["macs"][0]
    with pytest.raises(UserError, match="resize a subnet"):
        supernet.resized(16)


def test_it_stays_as_trainable_as_it_was() -> None:
    supernet = make_supernet(make_space("deit")).train()
    supernet.get_parameter("head.bias").requires_grad_(False)
    supernet.drop_path = 0.3
    larger = supernet.resized(32)
    assert larger.training and larger.drop_path == 0.3
    assert [name for name, each in larger.named_parameters() if not each.requires_grad] == ["head.bias"]


def test_sizes_that_a_family_cannot_take() -> None:
    with pytest.raises(UserError, match=r"multiples of 8 pixels .* found 28 x 28"):
        make_supernet(make_space("vit_res")).resized(28)
    with pytest.raises(UserError, match="larger than the 2 x 2 image"):
        make_supernet(make_space("deit")).resized(2)


@pytest.mark.parametrize(("size", "macs", "params"), [(280, 7.219, None), (336, 10.739, None), (392, 15.201, 97.56)])
def test_vit_resnas_medium_at_the_papers_sizes(size: int, macs: float, params: float | None) -> None:
    arch = load_arch("vit_resnas/published/medium")
    with torch.device("meta"):
        space = build_supernet(arch.space.fix(arch)).space_at(size)
    costs = cost(space, [arch])
    assert costs["macs"][0] / 1e9 == pytest.approx(macs, abs=5e-4)
    assert params is None or costs["params"][0] / 1e6 == pytest.approx(params, abs=5e-3)
