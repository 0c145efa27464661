"""The hybrid supernet against what the released NASViT code computed, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.families.hybrid.checkpoint import Layout, read_released
from raynas.nets.calibration import calibrate
from raynas.nets.supernet import Supernet
from raynas.nets.weights import load_supernet
from raynas.training.gradients import LARGEST, SUBNETS, Gradients
from raynas.training.projection import Project
from tests.families.nasvit_golden import DATA, arch_of, golden, golden_space

ABOUT, ARRAYS, WEIGHTS = golden()
SPACE = golden_space(ABOUT)
ARCHS = {name: arch_of(config, SPACE) for name, config in ABOUT["subnets"].items()}
IMAGES = ARRAYS["input"].double()

every_subnet = pytest.mark.parametrize("name", ["smallest", "largest", "sub_a_res80"])


def supernet() -> Supernet:
    return load_supernet(*read_released(WEIGHTS, SPACE)).double().eval()


@every_subnet
def test_logits(name: str) -> None:
    """In evaluation by the stored averages, in training by the batch's, and after calibration; sliced and extracted."""
    network, arch = supernet(), ARCHS[name]
    statistics = calibrate(network, arch, [IMAGES, 1.3 * IMAGES.flip(3)])
    with torch.no_grad():
        computed = {
            "logits": (network(IMAGES, arch), network.extract(arch)(IMAGES)),
            "calibrated_logits": (
                network(IMAGES, arch, statistics=statistics),
                network.extract(arch, statistics=statistics)(IMAGES),
            ),
            "trainmode_logits": (network.train()(IMAGES, arch),),
        }
    for which, found in computed.items():
        for logits in found:
            torch.testing.assert_close(logits, ARRAYS[f"{name}/{which}_f64"], rtol=0, atol=1e-12, msg=which)


def surrogate(logits: Tensor, teacher: Tensor) -> Tensor:
    """The release's distillation loss: for each image the larger of two alpha-divergences, alpha -1 and 1."""
    p, q, log_q = teacher.softmax(1), logits.detach().softmax(1), logits.log_softmax(1)
    u = (q / p).clamp(max=5)
    left, right = (q * (u - 1)).sum(1) / 2, (p * (p / q).log()).sum(1)
    return torch.where(left > right, -(q * (0.5 - u) * log_q).sum(1), -(p * log_q).sum(1)).mean()


def test_a_whole_sandwich_step() -> None:
    """Losses of four subnets (one of them in no other golden datum), their gradients, and what projection makes of it.

    By tensor of the release: what tables are cropped of on reading has no gradient.
    """
    expected, steps = ABOUT["sandwich"], np.load(DATA / "nasvit_sandwich_step.npz")
    network, layout = supernet().train(), Layout(SPACE)
    names = [name for name, _ in network.named_parameters()]
    logits = network(IMAGES, ARCHS["largest"])
    loss = -(ARRAYS["soft_target"] * logits.log_softmax(1)).sum(1).mean()
    losses = [
        surrogate(network(IMAGES, ARCHS[name]), logits.detach()) for name in ("smallest", "sub_a_res80", "sub_b_res96")
    ]
    assert loss.item() == pytest.approx(expected["loss_max_softCE"], abs=1e-12)
    assert [each.item() for each in losses] == pytest.approx(expected["kd_losses_min_a_b"], abs=1e-12)
    parameters = list(network.parameters())
    sets: dict[str, Gradients] = {
        role: list(torch.autograd.grad(of, parameters, allow_unused=True))
        for role, of in ((LARGEST, loss), (SUBNETS, torch.stack(losses).sum()))
    }
    total = torch.stack([each.norm() for each in sets[SUBNETS] if each is not None]).norm()
    assert total.item() == pytest.approx(expected["sub_grad_norm_before_clip"], rel=1e-9)
    combined = Project(form="released", clip_subnets=1.0).combine(sets, names, done=1.0)
    released = {str(name): index for index, name in enumerate(steps["names"])}
    assert released.keys() - set(layout.sources.values()) == layout.idle
    for index, name in enumerate(names):
        row = released[layout.sources[name]]
        for norms, gradient in (
            (steps["g_sup_norm"], sets[LARGEST][index]),
            (steps["g_sub_norm"] * total.item(), sets[SUBNETS][index]),
            (steps["final_projected_norm"], combined[index]),
        ):
            norm = 0.0 if gradient is None else gradient.norm().item()
            assert norm == pytest.approx(norms[row], rel=1e-6, abs=1e-12), name


def test_each_released_semantic_shows() -> None:
    """The golden data can tell: with usual norms, or factors keyed by anything else, logits are others."""
    arch, expected = ARCHS["sub_a_res80"], ARRAYS["sub_a_res80/logits_f64"]
    for change in ({"norm": "token"}, {"attention_scale": 1.0}):
        space = SPACE.replace(constants=SPACE.constants.model_copy(update=change))
        other = load_supernet(space, read_released(WEIGHTS, space)[1]).double().eval()
        with torch.no_grad():
            assert F.l1_loss(other(IMAGES, arch), expected) > 1e-4
