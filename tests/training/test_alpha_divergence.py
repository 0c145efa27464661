"""In-place distillation by the adaptive alpha-divergence: released values, a gradient by hand, gaps of any size."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from raynas.errors import ConfigError
from raynas.training.alpha_divergence import adaptive_divergence, divergence
from raynas.training.objectives import OBJECTIVES, alpha_divergence, cross_entropy
from raynas.training.samplers import Pass
from raynas.training.teachers import soft_targets

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "nasvit_alpha_divergence.npz")
# Of each case of the golden data: smaller alpha, greater alpha, cap.
CASES = {
    "mild": (-1.0, 1.0, 5.0),
    "close": (-1.0, 1.0, 5.0),
    "sharp": (-1.0, 1.0, 5.0),
    "imagenet_like_f32": (-1.0, 1.0, 5.0),
    "a_-0.5_1.5": (-0.5, 1.5, 5.0),
    "a_0.0005_0.5": (0.0005, 0.5, 5.0),
    "clip1000": (-1.0, 1.0, 1000.0),
}
SMALLEST, LARGEST = Pass("smallest", "smallest", ()), Pass("largest", "largest", ())


def golden(case: str, name: str) -> Tensor:
    return torch.tensor(GOLDEN[f"{case}/{name}"])


@pytest.mark.parametrize("case", CASES)
def test_as_the_released_code(case: str) -> None:
    *alphas, cap = CASES[case]
    student, teacher = golden(case, "student").requires_grad_(), golden(case, "teacher")
    log_p, log_q = F.log_softmax(teacher, 1), F.log_softmax(student, 1)
    single = student.dtype == torch.float32
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5} if single else {"rtol": 1e-9, "atol": 1e-12}
    for alpha, side in zip(alphas, ("left", "right"), strict=True):
        value, surrogate = divergence(log_p, log_q, alpha, cap)
        torch.testing.assert_close(value, golden(case, f"div_{side}"), **close)
        torch.testing.assert_close(surrogate.detach(), golden(case, f"surrogate_{side}"), **close)
    loss = alpha_divergence(
        SMALLEST, student, teacher, {"largest": teacher}, alpha_min=alphas[0], alpha_max=alphas[1], cap=cap
    )
    worse = torch.maximum(golden(case, "div_left"), golden(case, "div_right"))
    torch.testing.assert_close(loss.detach(), worse.mean(), **close)
    loss.backward()
    expected = golden(case, "grad_student")
    torch.testing.assert_close(
        student.grad, expected.to(student.dtype), rtol=close["rtol"], atol=1e-7 if single else 1e-12
    )
    chosen = golden(case, "chosen_left")
    assert case != "mild" or (chosen.any() and not chosen.all())  # both branches are learnt from


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("objective", ["alpha_divergence", "inplace_distillation"])
def test_gaps_of_a_thousand_are_finite(dtype: torch.dtype, objective: str) -> None:
    """Teacher and student are as sure as can be: of the same class, or of different ones."""
    sure = torch.tensor([[0.0, 1000.0, -1000.0], [1000.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=dtype)
    for teacher in (sure, sure.roll(1, 0), -sure):
        student = sure.clone().requires_grad_()
        loss = OBJECTIVES[objective](SMALLEST, student.float(), teacher.float(), {"largest": teacher.float()})
        loss.backward()
        assert torch.isfinite(loss) and student.grad is not None and torch.isfinite(student.grad).all()
        student = sure.clone().requires_grad_()  # and without the loop's cast
        adaptive_divergence(student, teacher, (-1.0, 1.0), 5.0).backward()
        assert student.grad is not None and torch.isfinite(student.grad).all()
        assert student.grad.abs().max() <= 1  # the mean over images of q - p, or of less
    other = torch.tensor([[3.0, 0.0, 0.0]], requires_grad=True)
    adaptive_divergence(other, sure[:1], (-1.0, 1.0), 5.0).backward()
    expected = other.detach().softmax(1) - torch.tensor([[0.0, 1.0, 0.0]])  # q - p: KL's, which is greater than 2
    torch.testing.assert_close(other.grad, expected, rtol=0, atol=1e-6)


def test_the_gradient_of_the_left_branch_by_hand() -> None:
    """A student that sees what its teacher does not: q_j u_j - q_j sum_i q_i u_i with u = q / p."""
    teacher = torch.tensor([[0.0, math.log(4)]], dtype=torch.float64)
    student = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss = adaptive_divergence(student, teacher, (-1.0, 1.0), 5.0)
    q, u = np.array([0.5, 0.5]), np.array([2.5, 0.625])
    assert loss.item() == pytest.approx((q * (u - 1)).sum() / 2)  # 0.28; the KL divergence is 0.19
    (gradient,) = torch.autograd.grad(loss, student)
    assert gradient[0].tolist() == pytest.approx(list(q * u - q * (q * u).sum()))


def test_the_largest_learns_from_the_targets_and_patches_from_its_patches() -> None:
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    targets = torch.softmax(torch.randn(2, 4, 3), -1)
    largest = alpha_divergence(LARGEST, logits, targets, {})
    assert largest == cross_entropy(logits, targets)
    loss = alpha_divergence(SMALLEST, logits, targets, {"largest": teacher})
    image = adaptive_divergence(logits[:, 0], teacher[:, 0], (-1.0, 1.0), 5.0)
    patches = adaptive_divergence(logits[:, 1:].reshape(6, 3), teacher[:, 1:].reshape(6, 3), (-1.0, 1.0), 5.0)
    assert loss.item() == pytest.approx((image + patches).item())
    with pytest.raises(ConfigError, match="alpha_divergence needs a sampler whose first pass is the largest"):
        alpha_divergence(SMALLEST, logits, targets, {})
    with pytest.raises(ConfigError, match="cap of alpha_divergence must be a number above 0, not 0"):
        alpha_divergence(LARGEST, logits, targets, {}, cap=0)


def test_teachers_are_sharpened_and_averaged_as_released() -> None:
    first, second = golden("external_teacher", "teacher1"), golden("external_teacher", "teacher2")
    targets = soft_targets([first, second], sharpen=5.0)
    torch.testing.assert_close(targets, golden("external_teacher", "soft_target"))
    student = golden("external_teacher", "student").requires_grad_()
    loss = alpha_divergence(LARGEST, student, targets, {})
    torch.testing.assert_close(loss.detach(), golden("external_teacher", "loss"))
    loss.backward()
    torch.testing.assert_close(student.grad, golden("external_teacher", "grad_student"))
