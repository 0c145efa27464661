"""Sorting of heads and hidden channels: against ViT-ResNAS's released code, and what it must leave alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from raynas.errors import ConfigError
from raynas.nets import build_supernet
from raynas.nets.supernet import Supernet
from raynas.space import Space
from raynas.training.loop import train_loop
from raynas.training.sorting import sort_channels
from tests.training.training_parts import SPACE, few, plan, recipe, same

GOLDEN = Path(__file__).parents[1] / "golden" / "resnas_channel_sorting.npz"
HEADS, HEAD_DIM = 4, 4


def one_block(constants: dict[str, object] | None = None) -> Supernet:
    """A supernet with one block of the golden data's widths."""
    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 4,
            "constants": {"head_dim": HEAD_DIM, **(constants or {})},
            "dimensions": {
                "patch_size": [4],
                "width": [8, 16],
                "depth": [1],
                "blocks": {"heads": [1, 4], "mlp_width": [6, 24]},
            },
        }
    )
    torch.manual_seed(0)
    return build_supernet(space)


def ours(arrays: np.lib.npyio.NpzFile, when: str) -> dict[str, torch.Tensor]:
    """The released block's parameters by our names; its query, key and value lie one behind the other."""
    names = {
        "norm1": "norm1",
        "norm2": "norm2",
        "qkv": "attn.qkv",
        "proj": "attn.proj",
        "fc1": "mlp.fc1",
        "fc2": "mlp.fc2",
    }
    state = {}
    for mine, theirs in names.items():
        for leaf in ("weight", "bias"):
            value = torch.tensor(arrays[f"{when}/{theirs}.{leaf}"])
            if mine == "qkv":
                value = value.unflatten(0, (3, HEADS, HEAD_DIM)).transpose(0, 1).flatten(0, 2)
            state[f"{mine}.{leaf}"] = value
    return state


def test_as_the_released_code_sorts() -> None:
    supernet = one_block()
    with np.load(GOLDEN) as arrays:
        before, after = ours(arrays, "before"), ours(arrays, "after")
    supernet.blocks[0].load_state_dict(before)  # type: ignore[index, union-attr]
    sort_channels(supernet, torch.optim.SGD(supernet.parameters(), lr=0.1))
    for name, tensor in supernet.blocks[0].state_dict().items():  # type: ignore[index, union-attr]
        assert torch.equal(tensor, after[name]), name
    assert not same(before, after)


@pytest.mark.parametrize("constants", [{}, {"qkv_bias": "thirds"}, {"relative_position": 2}, {"qkv_bias": "none"}])
def test_the_largest_network_stays_and_so_does_its_training(constants: dict[str, object]) -> None:
    """Sorted before a step or after it, AdamW takes the largest network to the same place."""
    torch.manual_seed(1)
    images, labels = torch.randn(2, 16, 1, 8, 8), torch.randint(4, (2, 16))
    outputs = []
    for sorted_first in (True, False):
        supernet = one_block(constants)
        with torch.no_grad():
            for parameter in supernet.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)), alpha=0.3)
        largest, optimizer = supernet.space.largest(), torch.optim.AdamW(supernet.parameters(), lr=0.01)
        for step in range(2):
            F.cross_entropy(supernet(images[step], largest), labels[step]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if sorted_first and step == 0:
                narrow = supernet(images[0], supernet.space.smallest()).detach()
                start = supernet(images[0], largest).detach()
                sort_channels(supernet, optimizer)
                torch.testing.assert_close(supernet(images[0], largest), start, rtol=0, atol=1e-5)
                assert (supernet(images[0], supernet.space.smallest()) - narrow).abs().max() > 1e-3
        outputs.append(supernet(images[0], largest).detach())
    torch.testing.assert_close(*outputs, rtol=0, atol=1e-5)


def test_sorting_again_changes_nothing() -> None:
    supernet = one_block()
    optimizer = torch.optim.SGD(supernet.parameters(), lr=0.1)
    sort_channels(supernet, optimizer)
    once = {name: tensor.clone() for name, tensor in supernet.state_dict().items()}
    sort_channels(supernet, optimizer)
    assert same(once, supernet.state_dict())


def test_what_cannot_be_sorted() -> None:
    cyclic = one_block({"sharing": "cyclic", "groups": 4})
    with pytest.raises(ConfigError, match="with sharing: ordinal alone"):
        sort_channels(cyclic, torch.optim.SGD(cyclic.parameters()))
    with pytest.raises(ConfigError, match=r"plan\.sort_channels: Adafactor keeps"):
        train_loop(
            SPACE, few(), plan(sort_channels=1.0), recipe(opt="adafactor", opt_args={"min_dim_size_to_factor": 1})
        )


def test_an_averaged_copy_is_sorted_along() -> None:
    """Each epoch's average of the largest network is what it is without sorting."""
    plain, ordered = (
        train_loop(SPACE, few(), plan(f"{__name__}:largest", sort_channels=share), recipe(ema=0.9))
        for share in (0.0, 1.0)
    )
    images = torch.randn(4, 1, 8, 8)
    first, second = (build_supernet(SPACE) for _ in range(2))
    first.load_state_dict(plain.weights)
    second.load_state_dict(ordered.weights)
    assert not same(plain.weights, ordered.weights)
    largest = SPACE.largest()
    torch.testing.assert_close(first(images, largest), second(images, largest), rtol=0, atol=1e-4)


def largest(space: Space, rng: object, losses: object) -> list[object]:
    from raynas.training.samplers import Pass

    return [Pass("largest", "largest", (space.largest(),))]
