"""The vit_res supernet against what the released ViT-ResNAS code computed: networks alone, mixed batches, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.costs import cost
from raynas.families.vit_res.checkpoint import read_released
from raynas.nets.channels import Channels
from raynas.nets.masked_norm import masked_norm
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.space import Arch
from tests.families.resnas_golden import DATA, arch_of, golden, golden_space

ABOUT, ARRAYS, WEIGHTS = golden()
SPACE = golden_space(ABOUT)
ARCHS: dict[str, Arch] = {name: arch_of(network, SPACE) for name, network in ABOUT["subnets"].items()}
ALONE = [name for name in ARCHS if f"{name}/cls_static_f64" in ARRAYS]


def supernet(dtype: torch.dtype) -> Supernet:
    space, weights = read_released(WEIGHTS, SPACE)
    return load_supernet(space, weights).to(dtype).eval()


def images(dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(ARRAYS["inputs"]).to(dtype)


@pytest.mark.parametrize("name", ALONE)
def test_a_network_alone(name: str) -> None:
    network = supernet(torch.float64)
    subnet = network.extract(ARCHS[name])
    for found in (
        network(images(torch.float64), ARCHS[name], patches=True),
        subnet(images(torch.float64), patches=True),
    ):
        expected = [ARRAYS[f"{name}/cls_static_f64"][:, None], ARRAYS[f"{name}/patch_static_f64"]]
        np.testing.assert_allclose(found.detach(), np.concatenate(expected, axis=1), rtol=0, atol=1e-12)
    single = supernet(torch.float32)(images(torch.float32), ARCHS[name])
    np.testing.assert_allclose(single.detach(), ARRAYS[f"{name}/cls_static_f32"], rtol=0, atol=1e-5)


def test_the_costs_of_the_networks() -> None:
    archs = list(ARCHS.values())
    checks = [ABOUT["checks"][name] for name in ARCHS]
    costs = cost(SPACE, archs)
    assert costs["macs"].tolist() == [check["macs_hook"] for check in checks]
    assert costs["params"].tolist() == [check["params_static_with_patch_head"] for check in checks]


@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_a_mixed_batch(execution: str) -> None:
    """The released float64 run takes fractions of channels in float32: hence 1e-6."""
    archs = [ARCHS[name] for name in ABOUT["multi_order"]]
    found = supernet(torch.float64)(images(torch.float64), archs, execution=execution, patches=True)
    expected = np.concatenate([ARRAYS["multi/cls_f64"][:, None], ARRAYS["multi/patch_f64"]], axis=1)
    np.testing.assert_allclose(found.detach(), expected, rtol=0, atol=1e-6)
    single = supernet(torch.float32)(images(torch.float32), archs, execution=execution)
    np.testing.assert_allclose(single.detach(), ARRAYS["multi/cls_f32"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("execution", ["groups", "masks"])
def test_gradients_of_a_mixed_batch(execution: str) -> None:
    """Soft targets of images and of patches, batch statistics and dropped paths off."""
    network = supernet(torch.float64)
    archs = [ARCHS[name] for name in ABOUT["multi_order"]]
    logits = network(images(torch.float64), archs, execution=execution, patches=True)
    targets = [torch.from_numpy(ARRAYS[f"train/targets_{which}"]).double() for which in ("cls", "patch")]
    loss = F.cross_entropy(logits[:, 0], targets[0])
    loss = loss + F.cross_entropy(logits[:, 1:].flatten(0, 1), targets[1].flatten(0, 1))
    assert loss.item() == pytest.approx(ABOUT["checks"]["train"]["loss_total"], abs=1e-6)
    loss.backward()
    ours = released_gradients(network)
    for name, norm in ABOUT["checks"]["train"]["grad_l2"].items():
        assert ours[name].norm().item() == pytest.approx(norm, rel=1e-5), name
    arrays = {
        name.removeprefix("train/grad/"): array for name, array in ARRAYS.items() if name.startswith("train/grad/")
    }
    assert len(arrays) == 19
    for name, expected in arrays.items():
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=1e-6, err_msg=name)


def released_gradients(network: Any) -> dict[str, Tensor]:
    """Gradients by the released names, found by reading a checkpoint in which every tensor is its own label."""
    labels = {name: torch.full_like(tensor, i) for i, (name, tensor) in enumerate(WEIGHTS.items())}
    _, read = read_released(labels, SPACE)
    released = list(WEIGHTS)
    found = {}
    for name, parameter in network.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if ".qkv." in name:
            head_dim = SPACE.constants.head_dims[int(name.split(".")[1])]
            gradient = gradient.unflatten(0, (-1, 3, head_dim)).transpose(0, 1).flatten(0, 2)
        found[released[int(read[name].flatten()[0])]] = gradient
    return found


@pytest.mark.parametrize("case", ["normal", "small_scale", "offset"])
def test_masked_layer_norm(case: str) -> None:
    """Where a mean of 100 hides a deviation of 0.1 too: there the released form errs by up to 0.7."""
    arrays = np.load(DATA / "resnas_masked_layer_norm.npz")
    x, exact, counts = arrays[f"{case}/x"], arrays[f"{case}/y_exact_f64_slice"], arrays["widths"].tolist()
    weight, bias = (torch.from_numpy(arrays[name]) for name in ("weight", "bias"))
    width = Channels.first_of_each(counts, torch.arange(len(counts)))
    found = masked_norm(torch.from_numpy(x), width, 1e-6, weight, bias).numpy()
    native = np.zeros_like(x)
    for row, count in enumerate(counts):
        kept = F.layer_norm(torch.from_numpy(x[row, :, :count]), (count,), weight[:count], bias[:count], eps=1e-6)
        native[row, :, :count] = kept
    assert not found[~np.broadcast_to(arrays["mask"], x.shape)].any()
    if case == "offset":
        assert np.abs(found - exact).max() <= 2 * np.abs(native - exact).max()
    else:
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-6)
