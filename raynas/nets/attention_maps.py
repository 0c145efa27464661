"""Attention maps of a network: what every query attends to, how far away it is, and how alike heads are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raynas.errors import UserError
from raynas.nets.device import evaluating
from raynas.nets.windows import Windows
from raynas.user_code import kind


@dataclass(frozen=True)
class Attending:
    """A block with attention, and the places of its tokens.

    Attributes:
        windows: the windows that its queries are in; one of the whole grid for global attention.
        pixels: pixels on the side of a token.
        reduction: side of the square of tokens that a query reads as one key.
        class_tokens: number of class tokens in front of the tokens of the grid.
    """

    name: str
    windows: Windows
    pixels: int
    reduction: int = 1
    class_tokens: int = 0

    @property
    def pairs(self) -> int:
        """Number of pairs of a query and a key that may attend to each other, for one head and one image."""
        queries, keys = self.places()
        return len(queries) * queries.shape[1] * keys.shape[1]

    def places(self) -> tuple[Tensor, Tensor]:
        """Return the centres of queries and of keys in pixels, (row, column): [windows, tokens, 2] each.

        Class tokens and padding have no place: NaN.
        """
        centres = (torch.cartesian_prod(*(torch.arange(side) for side in self.windows.grid)) + 0.5) * self.pixels
        known = torch.cat([centres, torch.ones(len(centres), 1)], dim=1)  # padding adds zeros
        queries = keys = self.windows.split(known[None])[0]
        if self.reduction > 1:
            image = known.T.reshape(1, 3, *self.windows.grid)
            below, right = (-side % self.reduction for side in self.windows.grid)
            pooled = F.avg_pool2d(F.pad(image, (0, right, 0, below)), self.reduction)
            keys = pooled.flatten(2).transpose(1, 2)
        beside = torch.zeros(1, self.class_tokens, 3)
        queries, keys = (torch.cat([beside.expand(len(part), -1, -1), part], dim=1) for part in (queries, keys))
        return queries[..., :2] / queries[..., 2:], keys[..., :2] / keys[..., 2:]


@dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The attention of one block for some images.

    Attributes:
        weights: [images, windows, heads, queries, keys]; a query's weights add up to 1. Talking heads are shown before
            they are mixed.
        queries, keys: centres in pixels (of the resized image, if the network resizes it), [windows, tokens, 2]; NaN
            for class tokens and padding.
    """

    name: str
    weights: Tensor
    queries: Tensor
    keys: Tensor

    def distance(self) -> Tensor:
        """Return each head's mean attention distance in pixels, [heads] (Raghu et al., 2021; S3, Figure 4).

        It is the mean distance between a query and what it attends to, weighted by attention. Class tokens and padding
        are left out on both sides.
        """
        apart = torch.cdist(self.queries, self.keys)  # [windows, queries, keys]
        known = apart.isfinite()
        weights = self.weights.masked_fill(~known[:, None], 0.0)
        seen = weights.sum(-1)
        mean = (weights * apart.nan_to_num()[:, None]).sum(-1) / seen.clamp(min=torch.finfo(seen.dtype).tiny)
        counted = known.any(-1)[:, None] & (seen > 0)
        return mean.masked_fill(~counted, 0.0).sum((0, 1, 3)) / counted.sum((0, 1, 3))

    def similarity(self) -> Tensor:
        """Return the cosine similarity of heads' weights, averaged over images and queries, [heads, heads]."""
        rows = F.normalize(self.weights, dim=-1).transpose(2, 3)  # [images, windows, queries, heads, keys]
        known = self.queries.isfinite().all(-1) if self.queries.isfinite().any() else None
        alike = rows @ rows.transpose(-2, -1)
        return alike.mean((0, 1, 2)) if known is None else alike[:, known].mean((0, 1))

    def mean_similarity(self) -> float | None:
        """Return the mean of `similarity` over pairs of different heads; None for one head."""
        similarity = self.similarity()
        heads = len(similarity)
        if heads == 1:
            return None
        return float((similarity.sum() - similarity.diagonal().sum()) / (heads * (heads - 1)))


@torch.no_grad()
def attention_maps(network: Any, images: Tensor) -> list[AttentionMaps]:
    """Return the attention maps of every block with self-attention, in the order of the blocks.

    Args:
        network: the network of one arch, such as `supernet.extract(arch)` or `run.model(network)`. It is looked at in
            evaluation mode.
        images: normalised images [n, channels, height, width]. The maps are large: some images are enough.

    Raises:
        UserError: it is no network of raynas, or a supernet of many archs, or the images do not have its size.
    """
    if not hasattr(network, "attending"):
        raise UserError(
            "attention_maps takes a network of raynas: supernet.extract(arch), run.model(network) or "
            f"timm.create_model('raynas_vit', ...), not {kind(network)}"
        )
    attending: list[Attending] = network.attending()
    with evaluating(network), ExitStack() as hooks, _Recorder() as recorder:
        for one in attending:
            module: nn.Module = network.get_submodule(one.name)
            hooks.enter_context(module.register_forward_pre_hook(recorder.enter(one.name)))
            hooks.enter_context(module.register_forward_hook(recorder.leave))
        network(images)
    found = []
    for one in attending:
        weights, (queries, keys) = recorder.weights[one.name], (places.to(images) for places in one.places())
        shape = len(images), len(queries), -1, queries.shape[1], keys.shape[1]
        found.append(AttentionMaps(one.name, weights.reshape(shape), queries, keys))
    return found


class _Recorder(TorchFunctionMode):
    """The weights of attention inside the modules that are entered."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[str, Tensor] = {}
        self._inside: str | None = None

    def enter(self, name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            self._inside = name

        return hook

    def leave(self, *_: Any) -> None:
        self._inside = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._inside is not None and func is F.scaled_dot_product_attention:
            self.weights[self._inside] = _weights(*args, **kwargs)
        result = func(*args, **kwargs)
        if self._inside is not None and func is Tensor.softmax:
            self.weights[self._inside] = result
        return result


def _weights(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Return the weights that `scaled_dot_product_attention` gives to the values."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    return (scores if attn_mask is None else scores + attn_mask).softmax(-1)
