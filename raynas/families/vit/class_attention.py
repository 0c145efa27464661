"""CaiT's class attention (Touvron et al., 2021): class tokens read the patches, which stay as they are."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.families.vit.space import VitConstants
from raynas.nets.channels import Channels
from raynas.nets.layers import ElasticLinear, ElasticNorm, LayerScale, select_layers
from raynas.space.rules import hidden_width


class ClassBlock(nn.Module):
    """Pre-norm attention of the class tokens to all tokens, and their MLP; the embedding width alone is elastic.

    Args:
        width: the largest embedding width.
    """

    def __init__(self, width: int, constants: VitConstants):
        super().__init__()
        shape = constants.class_attention
        assert shape is not None
        self.heads, self.ratio = shape.heads, shape.mlp_ratio
        self.query = Channels.first(shape.heads * shape.head_dim)
        channels, hidden, bias = self.query.count, hidden_width(width, shape.mlp_ratio), constants.qkv_bias != "none"
        self.norm1 = ElasticNorm(width, constants.norm_eps)
        self.q, self.k, self.v = (ElasticLinear(width, channels, bias=bias) for _ in range(3))
        self.proj = ElasticLinear(channels, width)
        self.norm2 = ElasticNorm(width, constants.norm_eps)
        self.fc1 = ElasticLinear(width, hidden)
        self.fc2 = ElasticLinear(hidden, width)
        scale = constants.layer_scale
        self.ls1, self.ls2 = (None if scale is None else LayerScale(width, scale) for _ in range(2))

    def select(self, width: Channels, hidden: Channels) -> dict[str, Tensor]:
        projections = {name: (width, self.query) for name in "qkv"}
        norms = {name: (width,) for name in ("norm1", "norm2", "ls1", "ls2")}
        mlp = {"fc1": (width, hidden), "fc2": (hidden, width)}
        return select_layers(self, {**norms, **projections, "proj": (self.query, width), **mlp})

    def forward(self, x: Tensor, class_tokens: int, width: Channels, hidden: Channels) -> Tensor:
        """Change the class tokens, the first in [batch, tokens, width]; the patches stay as they are."""
        token, patches = x[:, :class_tokens], x[:, class_tokens:]
        normed = self.norm1(x, width)
        q, k, v = (
            layer(part, width, self.query).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, part in ((self.q, normed[:, :class_tokens]), (self.k, normed), (self.v, normed))
        )
        out = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), self.query, width)
        token = token + width.mask(out if self.ls1 is None else self.ls1(out, width))
        out = hidden.mask(F.gelu(self.fc1(self.norm2(token, width), width, hidden)), inplace=True)
        out = self.fc2(out, hidden, width)
        return torch.cat([token + width.mask(out if self.ls2 is None else self.ls2(out, width)), patches], dim=1)
