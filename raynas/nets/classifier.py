"""Classifiers of the image and, if the space has a token head, of its patch tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear


def classify(
    head: ElasticLinear, token_head: ElasticLinear | None, pooled: Tensor, tokens: Tensor, width: Channels
) -> Tensor:
    """Return logits [batch, classes] or, with a token head, [batch, 1 + tokens, classes] with the image first.

    Args:
        pooled: [batch, width], the image's features.
        tokens: [batch, tokens, width], the patch tokens.
        width: the channels of both.
    """
    classes = Channels.first(head.weight.shape[0])
    logits = head(pooled, width, classes)
    if token_head is None:
        return logits
    return torch.cat([logits[:, None], token_head(tokens, width, classes)], dim=1)


def select_heads(
    head: ElasticLinear, token_head: ElasticLinear | None, width: Channels
) -> dict[str, dict[str, Tensor]]:
    """Return the active part of both heads' parameters, by the heads' names in every family."""
    classes = Channels.first(head.weight.shape[0])
    selected = {"head": head.select(width, classes)}
    if token_head is not None:
        selected["token_head"] = token_head.select(width, classes)
    return selected
