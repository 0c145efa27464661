"""Objectives: the loss of one pass.

An objective is a function `(this, logits, targets, outputs, **options) -> scalar loss` with

    this: the `Pass`.
    logits: [batch, classes], of this pass; with token labels [batch, 1 + patches, classes], the image's first.
    targets: of the same shape, each row a distribution (mixing and smoothing are in it).
    outputs: the detached logits of this step's earlier passes on the same batch, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor

from raynas.config import shown
from raynas.errors import ConfigError
from raynas.training.samplers import Pass


def labels(this: Pass, logits: Tensor, targets: Tensor, outputs: Mapping[str, Tensor]) -> Tensor:
    """Cross-entropy with the targets, for every pass; see `cross_entropy`."""
    return cross_entropy(logits, targets)


def inplace_distillation(
    this: Pass, logits: Tensor, targets: Tensor, outputs: Mapping[str, Tensor], *, temperature: float = 1.0
) -> Tensor:
    """The largest subnet learns from the targets, every other pass from the largest's logits (US-Nets; BigNAS).

    The loss of the others is soft cross-entropy, whose gradient is that of the KL divergence, times temperature squared
    (Hinton's scaling).

    Raises:
        ConfigError: no pass named `largest` came before, or the temperature is none.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise ConfigError(f"temperature of inplace_distillation must be a number above 0, not {shown(temperature)}")
    if this.role == "largest":
        return cross_entropy(logits, targets)
    if "largest" not in outputs:
        raise ConfigError(
            "plan: the objective inplace_distillation needs a sampler whose first pass is the largest subnet, "
            "such as sandwich"
        )
    teacher = F.softmax(outputs["largest"] / temperature, dim=-1)
    return cross_entropy(logits / temperature, teacher) * temperature**2


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over images of the cross-entropy with target distributions.

    With token labels the mean over all patches is added, with equal weight (ViT-ResNAS; LV-ViT).

    Args:
        logits, targets: [batch, classes], or [batch, 1 + patches, classes] with the image's first.
    """
    if logits.ndim == 2:
        return F.cross_entropy(logits, targets)
    patches = F.cross_entropy(logits[:, 1:].flatten(0, 1), targets[:, 1:].flatten(0, 1))
    return F.cross_entropy(logits[:, 0], targets[:, 0]) + patches


OBJECTIVES = {"labels": labels, "inplace_distillation": inplace_distillation}
