"""Classifiers of the image and, if the space has them, of its distillation token and its patch tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear
from raynas.space import Space


class Classifiers(nn.Module):
    """Base of networks that classify features, and tokens if the space says so; names are equal in every family."""

    head: ElasticLinear
    token_head: ElasticLinear | None
    distillation_head: ElasticLinear | None

    def add_classifiers(self, width: int, space: Space) -> None:
        """Add the space's classifiers, for features of the largest width."""
        self.head = ElasticLinear(width, space.classes)
        self.token_head = ElasticLinear(width, space.classes) if space.constants.token_head else None
        self.distillation_head = ElasticLinear(width, space.classes) if space.constants.distillation_token else None

    def logits(self, features: Sequence[Tensor], tokens: Tensor, width: Channels, patches: bool) -> Tensor:
        """Return logits [batch, classes]; of several classifiers [batch, images and tokens, classes].

        Args:
            features: of the image, and of the distillation token if there is one, [batch, width] each.
            tokens: [batch, tokens, width], the patch tokens.
            width: the channels of all.
            patches: add the token head's logits of every patch token.
        """
        classes = Channels.first(self.head.weight.shape[0])
        heads = [self.head] if self.distillation_head is None else [self.head, self.distillation_head]
        found = [head(each, width, classes) for head, each in zip(heads, features, strict=True)]
        if patches and self.token_head is not None:
            return torch.cat([torch.stack(found, dim=1), self.token_head(tokens, width, classes)], dim=1)
        return found[0] if len(found) == 1 else torch.stack(found, dim=1)

    def select_classifiers(self, width: Channels) -> dict[str, dict[str, Tensor]]:
        """Return the active part of the classifiers' parameters, by module."""
        classes = Channels.first(self.head.weight.shape[0])
        heads = {name: getattr(self, name) for name in ("head", "token_head", "distillation_head")}
        return {name: head.select(width, classes) for name, head in heads.items() if head is not None}
