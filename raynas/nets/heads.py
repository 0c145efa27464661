"""Classifiers of the image and, where a space has a token head, of its patch tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear


def classify(
    head: ElasticLinear, token_head: ElasticLinear | None, pooled: Tensor, tokens: Tensor, width: Channels
) -> Tensor:
    """Logits of the image alone [batch, classes], or with a token head [batch, 1 + tokens, classes], the image first.

    Args:
        pooled: [batch, width], what stands for the image.
        tokens: [batch, tokens, width], the patch tokens.
    """
    classes = Channels.first(head.weight.shape[0])
    logits = head(pooled, width, classes)
    if token_head is None:
        return logits
    return torch.cat([logits[:, None], token_head(tokens, width, classes)], dim=1)


def select_heads(
    head: ElasticLinear, token_head: ElasticLinear | None, width: Channels
) -> dict[str, dict[str, Tensor]]:
    """The acting part of both heads' parameters, by the names that every family gives them."""
    classes = Channels.first(head.weight.shape[0])
    selected = {"head": head.select(width, classes)}
    if token_head is not None:
        selected["token_head"] = token_head.select(width, classes)
    return selected
