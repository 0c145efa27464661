"""Objectives: the loss of one pass.

An objective is a function `(this, logits, targets, outputs, **options) -> scalar loss` with

    this: the `Pass`.
    logits: logits of this pass, [batch, classes] or, with token labels, [batch, 1 + patches, classes], the image first.
    targets: of the same shape, each row a distribution (including mixing, smoothing and external teachers).
    outputs: the detached logits of this step's earlier passes on the same batch, by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from raynas.errors import ConfigError
from raynas.text import shown
from raynas.training.alpha_divergence import adaptive_divergence
from raynas.training.samplers import Pass


def labels(this: Pass, logits: Tensor, targets: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
    """Return the cross-entropy with the targets, for every pass; see `cross_entropy`."""
    return cross_entropy(logits, targets)


def inplace_distillation(
    this: Pass, logits: Tensor, targets: Tensor, outputs: Mapping[str, Tensor], *, temperature: float = 1.0
) -> Tensor:
    """Train the largest subnet on the targets, and every other pass on the largest's logits (US-Nets; BigNAS).

    The loss of the others is soft cross-entropy, with the gradient of the KL divergence, times temperature squared
    (Hinton's scaling).

    Args:
        temperature: temperature of both softmaxes.

    Raises:
        ConfigError: no pass named `largest` came before, or the temperature is not a number above 0.
    """
    _check_above_zero("temperature of inplace_distillation", temperature)
    if this.role == "largest":
        return cross_entropy(logits, targets)
    teacher = F.softmax(_of_largest(outputs, "inplace_distillation") / temperature, dim=-1)
    return cross_entropy(logits / temperature, teacher) * temperature**2


def alpha_divergence(
    this: Pass,
    logits: Tensor,
    targets: Tensor,
    outputs: Mapping[str, Tensor],
    *,
    alpha_min: float = -1.0,
    alpha_max: float = 1.0,
    cap: float = 5.0,
) -> Tensor:
    """Distil in place by the adaptive alpha-divergence (AlphaNet; NASViT); see `raynas.training.alpha_divergence`.

    The largest subnet learns from the targets, every other pass from the largest's logits. For plain KL use
    `inplace_distillation`.

    Args:
        alpha_min, alpha_max: alphas of the two divergences; each image's loss is the greater one.
        cap: greatest ratio of teacher's to student's probability to the power of alpha.

    Raises:
        ConfigError: no pass named `largest` came before, or an option is out of range.
    """
    for name, value in (("alpha_min", alpha_min), ("alpha_max", alpha_max)):
        if not _is_number(value):
            raise ConfigError(f"{name} of alpha_divergence must be a number, not {shown(value)}")
    if alpha_min > alpha_max:
        raise ConfigError(f"alpha_min {alpha_min:g} of alpha_divergence is more than alpha_max {alpha_max:g}")
    _check_above_zero("cap of alpha_divergence", cap)
    if this.role == "largest":
        return cross_entropy(logits, targets)
    loss = partial(adaptive_divergence, alphas=(alpha_min, alpha_max), cap=cap)
    return _of_images_and_patches(loss, logits, _of_largest(outputs, "alpha_divergence"))


def _of_largest(outputs: Mapping[str, Tensor], objective: str) -> Tensor:
    """Return the logits of the largest subnet, the teacher of the other passes."""
    if "largest" not in outputs:
        raise ConfigError(
            f"plan: the objective {objective} needs a sampler whose first pass is the largest subnet, such as sandwich"
        )
    return outputs["largest"]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_above_zero(name: str, value: Any) -> None:
    if not _is_number(value) or not value > 0:
        raise ConfigError(f"{name} must be a number above 0, not {shown(value)}")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of images with target distributions.

    With token labels the mean over all patches is added with equal weight (ViT-ResNAS; LV-ViT).

    Args:
        logits, targets: [batch, classes], or [batch, 1 + patches, classes] with the image first.
    """
    return _of_images_and_patches(F.cross_entropy, logits, targets)


def _of_images_and_patches(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, other: Tensor) -> Tensor:
    """Return a mean loss over images; with token labels, plus its mean over all patches."""
    if logits.ndim == 2:
        return loss(logits, other)
    patches = loss(logits[:, 1:].flatten(0, 1), other[:, 1:].flatten(0, 1))
    return loss(logits[:, 0], other[:, 0]) + patches


OBJECTIVES = {
    "labels": labels,
    "inplace_distillation": inplace_distillation,
    "alpha_divergence": alpha_divergence,
}
