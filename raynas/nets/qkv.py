"""Elastic projections to queries, keys and values: all of a head together, or each of the three by itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raynas.nets.channels import Channels
from raynas.nets.layers import Bank, new_parameter
from raynas.nets.sharing import Kind


class ElasticQkv(nn.Module):
    """The projection to queries, keys and values, with layout [heads, 3, head_dim] so that fewer heads are a prefix.

    Args:
        bias: see `VitConstants.qkv_bias`. `thirds` holds the raw vector; its first 3 Q entries are the biases of
            query, key and value in contiguous thirds of Q = heads * head_dim, so an entry's role depends on the heads.
    """

    def __init__(self, width: int, heads: int, head_dim: int, bias: str):
        super().__init__()
        self.heads = heads
        self.unit = 3 * head_dim
        self.weight = new_parameter(heads * self.unit, width)
        self.bias = None if bias == "none" else nn.Parameter(torch.zeros(heads * self.unit))
        self.thirds = bias == "thirds"
        self.unit_kind: Kind | None = None if self.thirds else "heads"

    def select(self, width: Channels, heads: Channels, count: int) -> dict[str, Tensor]:
        """Return the active part of the parameters; `count` is the number of heads (needed by `SplitQkv`)."""
        assert count == heads.count
        selected = {"weight": heads.select(width.select(self.weight, 1), 0, self.unit)}
        if self.bias is not None:
            selected["bias"] = heads.select(self.bias, 0, self.unit)
        return selected

    def forward(self, x: Tensor, width: Channels, heads: Channels, count: int) -> Tensor:
        """Map [batch, tokens, width] to [batch, tokens, heads, 3, head_dim]."""
        selected = self.select(width, heads, count)
        weight, bias = selected["weight"], selected.get("bias")
        if not self.thirds or bias is None:
            out = F.linear(x, weight, bias)
        elif heads.rows is None:
            out = F.linear(x, weight, self._deal(bias, heads.count))
        else:
            rows = heads.rows
            dealt = [F.pad(self._deal(bias, n), (0, (heads.count - n) * self.unit)) for n in rows.counts]
            out = F.linear(x, weight)
            out = out + torch.stack(dealt).index_select(0, rows.which)[:, None].to(out.dtype)
        return out.unflatten(-1, (heads.count, 3, self.unit // 3))

    def _deal(self, bias: Tensor, heads: int) -> Tensor:
        """Reorder the raw vector's first entries from [3, heads, head_dim] to this layer's [heads, 3, head_dim]."""
        return bias[: heads * self.unit].view(3, heads, -1).transpose(0, 1).reshape(-1)


class Projection(nn.Module):
    """Several projections of the same input, all sliced by the same channels."""

    def __init__(self, parts: int, width: int, channels: int, bias: bool):
        super().__init__()
        self.parts = parts
        self.weight = new_parameter(parts, channels, width)
        self.bias = nn.Parameter(torch.zeros(parts, channels)) if bias else None

    def select(self, width: Channels, outputs: Channels, unit: int) -> dict[str, Tensor]:
        selected = {"weight": outputs.select(width.select(self.weight, 2), 1, unit)}
        if self.bias is not None:
            selected["bias"] = outputs.select(self.bias, 1, unit)
        return selected


class SplitQkv(nn.Module):
    """Separate projections to queries, keys and values, sliced alike; some may be private to a head count.

    A query width works with any number of heads that divides it.

    Args:
        units: largest number of units of the query axis.
        unit: channels of a unit: of a head if their width is fixed, else 1.
        private: the parts of `qkv` with separate parameters for each head count.
    """

    def __init__(self, width: int, units: int, unit: int, bias: bool, private: str, heads: Iterable[int]):
        super().__init__()
        self.heads = units
        self.unit = unit
        self.unit_kind: Kind | None = "heads" if unit > 1 and not private else None
        # The order of the stored parts: shared ones, then private ones.
        self.order = [part for part in "qkv" if part not in private] + [part for part in "qkv" if part in private]
        shared = 3 - len(private)
        self.shared = Projection(shared, width, units * unit, bias) if shared else None
        self.private = Bank(heads, lambda _: Projection(len(private), width, units * unit, bias)) if private else None

    def select(self, width: Channels, units: Channels, count: int) -> dict[str, Tensor]:
        """Return the active part of the parameters for a number of heads."""
        selected = {}
        if self.shared is not None:
            parts = self.shared.select(width, units, self.unit)
            selected.update({f"shared.{name}": tensor for name, tensor in parts.items()})
        if self.private is not None:
            parts = self.private.select(count, width, units, self.unit)
            selected.update({f"private.{name}": tensor for name, tensor in parts.items()})
        return selected

    def forward(self, x: Tensor, width: Channels, units: Channels, count: int) -> Tensor:
        """Map [batch, tokens, width] to [batch, tokens, heads, 3, head_dim]; `count` is the number of heads."""
        weight, bias = self.weights(width, units, count)
        out = F.linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
        return out.unflatten(-1, (3, count, -1)).transpose(2, 3)

    def weights(self, width: Channels, units: Channels, count: int) -> tuple[Tensor, Tensor | None]:
        """Return the active weights [3, channels, width] and biases [3, channels] of query, key and value."""
        projections = [self.shared, None if self.private is None else self.private.of(count)]
        selected = [(each.parts, each.select(width, units, self.unit)) for each in projections if each is not None]
        weight = self._in_order([(parts, tensors["weight"]) for parts, tensors in selected])
        if "bias" not in selected[0][1]:
            return weight, None
        return weight, self._in_order([(parts, tensors["bias"]) for parts, tensors in selected])

    def _in_order(self, stacks: list[tuple[int, Tensor]]) -> Tensor:
        """Merge stacks, each with its number of parts, from stored order to one stack of query, key and value."""
        if len(stacks) == 1:
            return stacks[0][1]
        listed = [stack[index] for parts, stack in stacks for index in range(parts)]
        parts = dict(zip(self.order, listed, strict=True))
        return torch.stack([parts[part] for part in "qkv"])
