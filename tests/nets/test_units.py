"""Units that change places: the largest network of every family stays the same."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from raynas.nets.supernet import Supernet
from tests.families.nets_spaces import DEFINITIONS, make_images, make_space, make_supernet


def tensors_of(supernet: Supernet) -> dict[str, torch.Tensor]:
    return {**dict(supernet.named_parameters()), **dict(supernet.named_buffers())}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_any_permutation_leaves_the_largest_network_unchanged(name: str) -> None:
    space = make_space(name)
    supernet, images = make_supernet(space).double(), make_images(space, 2).double()
    side, smallest, largest = supernet.sides[0], space.smallest(), space.largest()
    with torch.no_grad():
        before, narrow = (supernet(images, arch, side=side) for arch in (largest, smallest))
        for group in supernet.exchangeable():
            assert group.count > 1 or len(group.axes) > 1
            held = {name: tensor.clone() for name, tensor in tensors_of(supernet).items()}
            group.reorder(tensors_of(supernet), torch.randperm(group.count))
            # With tensors of one group alone moved, nothing else may have changed.
            names = {axis.name for axis in group.axes}
            assert all(torch.equal(tensor, held[n]) for n, tensor in tensors_of(supernet).items() if n not in names)
            torch.testing.assert_close(supernet(images, largest, side=side), before, rtol=0, atol=1e-9)
    assert (supernet(images, smallest, side=side) - narrow).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "width", "heads"),
    [
        ("deit", 1, 3),
        ("thirds alone", 1, 0),
        ("vitas", 1, 0),
        ("s3 maskable", 2, 3),
        ("vit_res", 3, 7),
        ("twins", 3, 0),
    ],
)
def test_groups_of_each_kind(name: str, width: int, heads: int) -> None:
    """Heads that divide a query width, have private parameters, or share entries of a bias cannot change places."""
    kinds = Counter(group.kind for group in make_supernet(make_space(name)).exchangeable())
    assert kinds["width"] == width and kinds["heads"] == heads and kinds["hidden"] > 0


def test_a_permutation_is_undone_by_its_inverse() -> None:
    supernet = make_supernet(make_space("vit_res"))
    before = {name: tensor.clone() for name, tensor in tensors_of(supernet).items()}
    for group in supernet.exchangeable():
        order = torch.randperm(group.count)
        group.reorder(tensors_of(supernet), order)
        group.reorder(tensors_of(supernet), torch.argsort(order))
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors_of(supernet).items())


def test_every_entry_of_a_networks_width_moves() -> None:
    """Of each tensor that is cut with the width, by what extraction cuts."""
    space = make_space("deit")
    supernet = make_supernet(space)
    narrow = space.arch({**space.largest(), "width": space["width"].choices[0]})
    full, cut = supernet.select(space.largest()), supernet.select(narrow)
    (width,) = (group for group in supernet.exchangeable() if group.kind == "width")
    for name, tensor in full.items():
        axes = {dim for dim, (a, b) in enumerate(zip(tensor.shape, cut[name].shape, strict=True)) if a != b}
        hidden = {dim for dim in axes if name.endswith(("fc1.weight", "fc1.bias")) and dim == 0}
        hidden |= {dim for dim in axes if name.endswith("fc2.weight") and dim == 1}  # a ratio to the width
        assert axes - hidden == {axis.dim for axis in width.axes if axis.name == name}, name
