"""Golden data of the released AutoFormer code: logits, hidden states and gradients of four subnets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.families.vit.checkpoint import read_released
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Arch, Space

DATA = Path(__file__).parents[1] / "golden"
GOLDEN = json.loads((DATA / "autoformer_head64.json").read_text())
SUBNETS = list(GOLDEN["subnets"])


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    with np.load(DATA / "autoformer_head64.npz") as stored:
        return {name: torch.from_numpy(stored[name]) for name in stored}


def golden_supernet(arrays: dict[str, Tensor], pool: str = "mean", factor: float = 1.0) -> Supernet:
    """The supernet of the golden data; `factor` on the parameters of its low-variance case."""
    choices = GOLDEN["space"]
    space = Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 32, "channels": 3},
            "classes": 10,
            "constants": {"pool": pool, "relative_position": 14, "qkv_bias": "thirds", "norm_eps": 1e-5},
            "dimensions": {
                "patch_size": [8],
                "width": choices["embed_dim"],
                "depth": choices["depth"],
                "blocks": {"heads": choices["num_heads"], "mlp_ratio": choices["mlp_ratio"]},
            },
        }
    )
    state = {name[len("param/") :]: value for name, value in arrays.items() if name.startswith("param/")}
    for name in GOLDEN["lowvar_case"]["params"]:
        state[name] = state[name] * factor
    return load_supernet(*read_released({"model": state, "epoch": 3}, space)).eval()


def golden_arch(space: Space, subnet: str) -> Arch:
    values: dict[str, Any] = GOLDEN["subnets"][subnet]
    return space.arch(
        {
            "patch_size": 8,
            "width": values["embed_dim"],
            "depth": values["depth"],
            "blocks": {"heads": values["num_heads"], "mlp_ratio": values["mlp_ratio"]},
        }
    )


@pytest.mark.parametrize("subnet", SUBNETS)
@pytest.mark.parametrize(("pool", "key"), [("mean", "logits_gp"), ("token", "logits_cls")])
def test_logits(arrays: dict[str, Tensor], subnet: str, pool: str, key: str) -> None:
    supernet = golden_supernet(arrays, pool)
    arch = golden_arch(supernet.space, subnet)
    for logits in (supernet(arrays["input"], arch), supernet.extract(arch)(arrays["input"])):
        torch.testing.assert_close(logits, arrays[f"{key}/{subnet}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("subnet", SUBNETS)
def test_logits_where_the_norms_epsilon_matters(arrays: dict[str, Tensor], subnet: str) -> None:
    supernet = golden_supernet(arrays, factor=0.02)
    logits = supernet(arrays["input"], golden_arch(supernet.space, subnet))
    torch.testing.assert_close(logits, arrays[f"logits_gp_lowvar/{subnet}"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("factor", [1.0, 0.02])
@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_logits_of_a_mixed_batch(arrays: dict[str, Tensor], execution: str, factor: float) -> None:
    supernet = golden_supernet(arrays, factor=factor)
    archs = [golden_arch(supernet.space, subnet) for subnet in SUBNETS]
    logits = supernet(arrays["input"], archs, execution=execution)
    key = "logits_gp" if factor == 1 else "logits_gp_lowvar"
    expected = torch.stack([arrays[f"{key}/{subnet}"][i] for i, subnet in enumerate(SUBNETS)])
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)


def test_hidden_states(arrays: dict[str, Tensor]) -> None:
    supernet = golden_supernet(arrays)
    arch = golden_arch(supernet.space, "mixed_a")
    states: list[Tensor] = []
    for part in (supernet.get_submodule("stem.8"), *supernet.get_submodule("blocks").children()):
        part.register_forward_hook(lambda _module, _inputs, output: states.append(output))
    supernet(arrays["input"], arch)
    assert len(states) == 4
    for index, state in enumerate(states):
        torch.testing.assert_close(state, arrays[f"hidden/mixed_a/{index}"], rtol=0, atol=1e-5)


def test_gradients(arrays: dict[str, Tensor]) -> None:
    supernet = golden_supernet(arrays)
    loss = F.cross_entropy(supernet(arrays["input"], golden_arch(supernet.space, "mixed_a")), arrays["labels"])
    assert loss.item() == pytest.approx(GOLDEN["loss_mixed_a"], abs=1e-6)
    loss.backward()
    summary = GOLDEN["grad_summary_mixed_a"]
    ours = {name: parameter.grad for name, parameter in supernet.named_parameters()}
    released = {"stem.8.class_token": "cls_token", "norm.weight": "norm.weight", "head.weight": "head.weight"}
    released |= {f"blocks.{i}.qkv.bias": f"blocks.{i}.attn.qkv.bias" for i in range(3)}
    for name, theirs in released.items():
        torch.testing.assert_close(ours[name], arrays[f"grad/{theirs}"], rtol=0, atol=1e-5)
    compared = 0
    names = {f"blocks.{i}.{ours}": f"blocks.{i}.{theirs}" for i in range(3) for ours, theirs in BLOCK_NAMES.items()}
    for name, theirs in (released | NETWORK_NAMES | names).items():
        gradient = ours[name]
        assert gradient is not None
        assert gradient.norm().item() == pytest.approx(summary[theirs]["l2"], rel=1e-4), name
        if not name.endswith("qkv.bias"):  # whose key third is zero but for rounding
            assert int(gradient.count_nonzero()) == summary[theirs]["nonzero"], name
        compared += 1
    assert compared == len(summary)


NETWORK_NAMES = {
    "stem.8.position": "pos_embed",
    "stem.8.proj.weight": "patch_embed_super.proj.weight",
    "stem.8.proj.bias": "patch_embed_super.proj.bias",
    "norm.bias": "norm.bias",
    "head.bias": "head.bias",
}
BLOCK_NAMES = {
    "norm1.weight": "attn_layer_norm.weight",
    "norm1.bias": "attn_layer_norm.bias",
    "qkv.weight": "attn.qkv.weight",
    "relative.key_rows": "attn.rel_pos_embed_k.embeddings_table_v",
    "relative.key_columns": "attn.rel_pos_embed_k.embeddings_table_h",
    "relative.value_rows": "attn.rel_pos_embed_v.embeddings_table_v",
    "relative.value_columns": "attn.rel_pos_embed_v.embeddings_table_h",
    "proj.weight": "attn.proj.weight",
    "proj.bias": "attn.proj.bias",
    "norm2.weight": "ffn_layer_norm.weight",
    "norm2.bias": "ffn_layer_norm.bias",
    "fc1.weight": "fc1.weight",
    "fc1.bias": "fc1.bias",
    "fc2.weight": "fc2.weight",
    "fc2.bias": "fc2.bias",
}


@pytest.mark.parametrize("subnet", SUBNETS)
def test_parameter_counts(arrays: dict[str, Tensor], subnet: str) -> None:
    supernet = golden_supernet(arrays)
    extracted = supernet.extract(golden_arch(supernet.space, subnet))
    count = sum(parameter.numel() for parameter in extracted.parameters())
    assert count == GOLDEN["subnets"][subnet]["params_official"]
    assert sum(parameter.numel() for parameter in supernet.parameters()) == GOLDEN["supernet_total_params"]
