"""What a supernet inherits from that of another space: an arch of both computes the same in both."""

from __future__ import annotations

import pytest
import torch

from raynas.errors import ConfigError
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.outer.evolution.warm_start import check_inheritable, inherit
from raynas.space import Space, load_space
from raynas.space.choices import with_choices
from tests.outer.outer_parts import vit


def supernets(old: Space, new: Space) -> tuple[Supernet, Supernet]:
    torch.manual_seed(0)
    return build_supernet(old).eval(), build_supernet(new).eval()


def ordinal(name: str) -> Space:
    space = load_space(name)
    return space.replace(constants=space.constants.model_copy(update={"sharing": "ordinal", "groups": None}))


@pytest.mark.parametrize("name", ["digits/vit", "digits/twins", "digits/vit_resnas", "digits/vitas_v1"])
def test_of_the_same_space_everything_is_inherited(name: str) -> None:
    space = ordinal(name)
    old, new = supernets(space, space)
    assert inherit(new, old) == 1.0
    for key, tensor in old.state_dict().items():
        assert torch.equal(tensor, new.state_dict()[key]), key


def test_an_arch_of_both_spaces_computes_the_same_in_both() -> None:
    before = vit(width=[16, 32, 48], depth=[1, 2], heads=[1, 2, 3], mlp_ratio=[1.0, 2.0])
    blocks = {f"blocks.{i}.heads": (2, 3, 4) for i in range(2)}
    after = with_choices(before, {"width": (32, 48, 64), "depth": (2, 3), **blocks})
    old, new = supernets(before, after)
    fresh = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    share = inherit(new, old)
    images = torch.randn(3, 1, 8, 8)
    for values in ({"width": 48, "depth": 2}, {"width": 32, "depth": 2}):
        arch = after.arch({**after.smallest(), **values})
        assert arch in before and torch.equal(old(images, before.arch(arch)), new(images, arch))
    # Fresh: the third block, the channels beyond 48, the fourth head. Counted here by what has changed.
    changed = sum(int((fresh[name] != tensor).sum()) for name, tensor in new.state_dict().items())
    constant = sum(
        int(((fresh[name] == tensor) & _covered(name, tensor)).sum()) for name, tensor in new.state_dict().items()
    )
    assert share == pytest.approx((changed + constant) / sum(tensor.numel() for tensor in fresh.values()))
    assert 0.3 < share < 0.7


def _covered(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Which entries of a tensor that starts as a constant (norms, biases) belong to what is inherited."""
    inside = torch.zeros(tensor.shape, dtype=torch.bool)
    if tensor.ndim != 1 or name.startswith("blocks.2."):
        return inside
    if "qkv" in name:
        inside.view(3, -1)[:, :24] = True  # three heads of eight channels
    elif "fc1" in name:
        inside[:96] = True  # twice 48
    elif name.startswith("head"):
        inside[:] = True
    else:
        inside[:48] = True
    return inside


def test_sharing_that_another_width_changes_is_refused() -> None:
    check_inheritable(ordinal("digits/twins"))
    with pytest.raises(ConfigError, match="warm_start: with sharing cyclic"):
        check_inheritable(load_space("digits/twins"))
