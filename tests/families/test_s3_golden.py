"""Golden data of the released S3 network: logits, hidden states and gradients of a small one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.costs import cost
from raynas.errors import UserError
from raynas.families.s3.checkpoint import read_released
from raynas.families.s3.model import S3Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Space

DATA = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((DATA / "s3_static_small.json").read_text())
CONFIG = GOLDEN["config"]


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    with np.load(DATA / "s3_static_small.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored}


def golden_space() -> Space:
    """The one-point space of the released configuration; its last stage's windows are larger than the grid."""
    per_block = zip(CONFIG["window_size"], CONFIG["num_heads"], CONFIG["mlp_ratio"], strict=True)
    blocks = [
        [{"window": [w], "heads": [h], "mlp_ratio": [r]} for w, h, r in zip(*lists, strict=True)] for lists in per_block
    ]
    stages = [
        {"width": [width], "depth": [len(each)], "blocks": each}
        for width, each in zip(CONFIG["embed_dim"], blocks, strict=True)
    ]
    definition = {"input": {"size": 64}, "classes": 10, "dimensions": {"stages": stages}}
    return Space.from_dict({"family": "s3", **definition}, "golden")


def released(arrays: dict[str, Tensor], factor: float = 1.0) -> dict[str, Tensor]:
    """The parameters by their released names; `factor` on those of the low-variance case."""
    state = {name.removeprefix("param/"): value for name, value in arrays.items() if name.startswith("param/")}
    return {name: value * factor if "patch_embed.proj" in name else value for name, value in state.items()}


def golden_network(arrays: dict[str, Tensor], factor: float = 1.0) -> S3Supernet:
    network = load_supernet(*read_released({"model": released(arrays, factor), "epoch": 3}, golden_space())).eval()
    assert isinstance(network, S3Supernet)
    return network


def test_logits_hidden_states_and_costs(arrays: dict[str, Tensor]) -> None:
    network, hidden = golden_network(arrays), dict[str, Tensor]()
    points = {"patch_embed": "embedding"}
    for stage, blocks in enumerate(CONFIG["window_size"]):
        points |= {f"stage{stage}.block{i}": f"stages.{stage}.blocks.{i}" for i in range(len(blocks))}
        points |= {f"stage{stage - 1}.merge": f"stages.{stage}.merging"} if stage else {}
    for point, module in points.items():
        network.get_submodule(module).register_forward_hook(
            lambda _, __, out, point=point: hidden.update({point: out[:1]})
        )
    with torch.no_grad():
        torch.testing.assert_close(network(arrays["input"]), arrays["logits"], rtol=0, atol=1e-5)
    assert {f"hidden/{point}" for point in hidden} == {name for name in arrays if name.startswith("hidden/")}
    for point, found in hidden.items():
        torch.testing.assert_close(found, arrays[f"hidden/{point}"], rtol=0, atol=1e-5, msg=point)
    costs = cost(network.space, [network.space.smallest()])
    assert (costs["params"][0], costs["macs"][0]) == (GOLDEN["params_total"], GOLDEN["macs_batch1"])


def test_the_epsilon_of_the_norms(arrays: dict[str, Tensor]) -> None:
    with torch.no_grad():
        logits = golden_network(arrays, factor=0.01)(arrays["input"])
    torch.testing.assert_close(logits, arrays["logits_lowvar"], rtol=0, atol=1e-5)


def test_gradients(arrays: dict[str, Tensor]) -> None:
    network = golden_network(arrays)
    F.cross_entropy(network(arrays["input"]), arrays["labels"]).backward()
    torch.testing.assert_close(network.head.weight.grad, arrays["grad/head.weight"], rtol=0, atol=1e-6)
    for stage, blocks in enumerate(CONFIG["num_heads"]):
        for place, heads in enumerate(blocks):
            theirs = f"grad/layers.{stage}.blocks.{place}.attn"
            block = network.get_submodule(f"stages.{stage}.blocks.{place}")
            table = arrays[f"{theirs}.relative_position_bias_table"].T
            found = block.get_parameter("bias.table").grad
            assert found is not None
            torch.testing.assert_close(found.flatten(1), table, rtol=0, atol=1e-6)
            qkv = arrays[f"{theirs}.qkv.bias"].view(3, heads, 32).transpose(0, 1).flatten()
            torch.testing.assert_close(block.get_parameter("qkv.bias").grad, qkv, rtol=0, atol=1e-6)


def test_without_a_space_it_follows_from_the_shapes(arrays: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"model": {**released(arrays), "layers.0.blocks.1.attn_mask": torch.zeros(3)}}, tmp_path / "s3.pth")
    space, weights = read_released(tmp_path / "s3.pth")
    assert space.input_size == (224, 224) and space.classes == 10
    at = space.with_input(64)
    assert at.smallest().network_id == golden_space().smallest().network_id  # windows of 7 on a grid of 2 are of 2
    with torch.no_grad():
        logits = load_supernet(at, weights).eval()(arrays["input"])
    torch.testing.assert_close(logits, arrays["logits"], rtol=0, atol=1e-5)


def test_other_checkpoints_are_refused(arrays: dict[str, Tensor]) -> None:
    state = released(arrays)
    with pytest.raises(UserError, match=r"lacks 'patch_embed.proj.weight'"):
        read_released({name: value for name, value in state.items() if "patch_embed.proj" not in name})
    with pytest.raises(UserError, match=r"has no layers.2.downsample.norm.bias, which golden needs"):
        read_released(
            {name: value for name, value in state.items() if name != "layers.2.downsample.norm.bias"}, golden_space()
        )
    with pytest.raises(UserError, match=r"has 'extra', which space golden has no use for"):
        read_released({**state, "extra": torch.zeros(2)}, golden_space())
    name = "layers.1.blocks.1.attn.relative_position_bias_table"
    with pytest.raises(
        UserError, match=r"has layers.1.*_table of shape \[9, 2\], where space golden has \[2, 15, 15\]"
    ):
        read_released({**state, name: torch.zeros(9, 2)}, golden_space())
    with pytest.raises(UserError, match="a table of 10 biases is not one of square windows"):
        read_released({**state, name: torch.zeros(10, 2)})
    with pytest.raises(UserError, match="is not a Swin transformer"):
        read_released({"weight": torch.zeros(1)})
