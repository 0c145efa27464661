"""The adaptive alpha-divergence between a teacher's and a student's predictions (AlphaNet, Section 3; used by NASViT).

With p the teacher's probabilities and q the student's, a divergence of negative alpha penalises large q at small p, and
one of positive alpha small q at large p. Each image's loss is the greater of two, so that the student can neither over-
nor underestimate the teacher.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

NEAR = 1e-3
"""Distance of alpha to 0 and 1 within which the divergence is its limit, a KL divergence (as released)."""


def adaptive_divergence(student: Tensor, teacher: Tensor, alphas: tuple[float, float], cap: float) -> Tensor:
    """Return the mean over images of the greater of two alpha-divergences of the student from the teacher.

    The value is that of the divergence. The gradient is that of its surrogate, which depends on the student through
    log q only (AlphaNet, Equation 9, with the ratio p / q to the power of alpha capped).

    Args:
        student, teacher: logits [images, classes]. Computation is in float32 or wider on differences of
            log-probabilities, so that any logits give finite values and gradients.
        alphas: alphas of both divergences.
        cap: greatest value of (p / q)^alpha; unused at alpha = 1.

    Returns:
        Scalar.
    """
    kind = torch.promote_types(student.dtype, torch.float32)
    log_p = F.log_softmax(teacher.detach().to(kind), dim=1)
    log_q = F.log_softmax(student.to(kind), dim=1)
    (first, first_surrogate), (second, second_surrogate) = (divergence(log_p, log_q, alpha, cap) for alpha in alphas)
    value = torch.maximum(first, second)
    surrogate = torch.where(first > second, first_surrogate, second_surrogate)
    return (value + surrogate - surrogate.detach()).mean()


def divergence(log_p: Tensor, log_q: Tensor, alpha: float, cap: float) -> tuple[Tensor, Tensor]:
    """Return an alpha-divergence of each image, and the surrogate that gives its gradient.

    Args:
        log_p, log_q: log-probabilities [images, classes] of teacher and student.

    Returns:
        Two tensors [images]; the first has no gradient, and only the gradient of the second is meaningful.
    """
    p, q, log_ratio = log_p.exp(), log_q.detach().exp(), log_p - log_q.detach()
    if abs(alpha - 1) < NEAR:  # KL(p || q)
        return (p * log_ratio).sum(1), -(p * log_q).sum(1)
    if abs(alpha) < NEAR:  # KL(q || p)
        log_ratio = log_ratio.clamp(max=math.log(cap))
        return -(q * log_ratio).sum(1), -(q * (log_ratio - 1) * log_q).sum(1)
    scale = alpha * (alpha - 1)
    powers = (alpha * log_ratio).clamp(max=math.log(cap)).exp()
    return (q * (powers - 1)).sum(1) / scale, -(q * (powers / alpha + 1 / scale) * log_q).sum(1)
