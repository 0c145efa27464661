"""Projection of conflicting gradients (NASViT, Section 4.1), and the cosines between gradients that tell conflicts.

The largest subnet's gradient s and the sum b of the others' conflict where <s, b> < 0. One of them then gives way: its
part along the other is taken out (Equation 1), in each unit of the network on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raynas.config import nearest, shown
from raynas.errors import ConfigError
from raynas.training.gradients import LARGEST, SUBNETS, Gradients, added, by_role, checked_limit, clipped
from raynas.training.samplers import Pass

UNITS = ("tensor", "layer", "model")
_CHOICES = {"priority": (SUBNETS, LARGEST), "unit": UNITS, "form": ("exact", "released")}

RELEASED_EPSILON, RELEASED_CAP = 1e-6, 2.0


class Project:
    """The largest subnet's gradient and the others' are added up, after one of them gave way where they conflict.

    Args:
        priority: `subnets`: the largest's gives way (NASViT); `largest`: the others' sum does.
        unit: what is projected on its own: each `tensor` (the release), each `layer` (the paper's statistics; see
            `layer_of`) or the whole `model` (Equation 1 as written).
        form: `exact`; or `released`: the coefficient with which the part is taken out is
            -<s, b> / (1e-6 + |b|^2), and 2 at most.
        start: share of the epochs before projection begins; until then gradients are added up (the release: 0.2525,
            which is epoch 101 of 400).
        clip_subnets: largest global norm of the others' sum, clipped before anything else (the release: 1.0); None
            does not clip it. `recipe.clip_grad` clips the result.

    Raises:
        ConfigError: an option has none of its values.
    """

    def __init__(
        self,
        *,
        priority: str = SUBNETS,
        unit: str = "tensor",
        form: str = "exact",
        start: float = 0.0,
        clip_subnets: float | None = None,
    ):
        given: dict[str, Any] = {"priority": priority, "unit": unit, "form": form}
        for name, choices in _CHOICES.items():
            if given[name] not in choices:
                hint = nearest(str(given[name]), choices)
                raise ConfigError(f"{name} of project is {shown(given[name])}{hint}")
        if isinstance(start, bool) or not isinstance(start, int | float) or not 0 <= start < 1:
            raise ConfigError(f"start of project is a share of the epochs, from 0 to below 1, not {shown(start)}")
        self.priority, self.unit, self.released = priority, unit, form == "released"
        self.start, self.clip_subnets = start, checked_limit(clip_subnets)

    def assign(self, passes: Sequence[Pass]) -> list[str]:
        return by_role(passes)

    def combine(self, sets: Mapping[str, Gradients], names: Sequence[str], done: float) -> Gradients:
        largest, subnets = sets[LARGEST], clipped(sets[SUBNETS], self.clip_subnets)
        if done < self.start:
            return added(largest, subnets)
        yields, keeps = (largest, subnets) if self.priority == SUBNETS else (subnets, largest)
        return added(largest, subnets, self._taken_out(yields, keeps, names))

    def _taken_out(self, yields: Gradients, keeps: Gradients, names: Sequence[str]) -> Gradients:
        """What the projection of `yields` on the normal plane of `keeps` adds to it: a multiple of `keeps`."""
        units = unit_of(names, self.unit)
        inner, _, squares = by_unit(products(yields, keeps), units).unbind(1)
        if self.released:
            factors = (-inner / (squares + RELEASED_EPSILON)).clamp(0, RELEASED_CAP)
        else:  # without a gradient to keep the inner product is 0, too
            factors = -inner.clamp(max=0) / torch.where(squares > 0, squares, 1.0)
        return [None if one is None else one * factors[unit].to(one) for one, unit in zip(keeps, units, strict=True)]


def layer_of(parameter: str) -> str:
    """The layer of a parameter: the module that holds it (`blocks.3.attn.qkv`), or itself where that is the network."""
    return parameter.rpartition(".")[0] or parameter


def unit_of(names: Sequence[str], unit: str) -> list[int]:
    """Each parameter's unit, numbered in the order of their first parameters."""
    keys = {"tensor": list(names), "layer": [layer_of(name) for name in names], "model": [""] * len(names)}[unit]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def products(first: Gradients, second: Gradients) -> Tensor:
    """<first, second>, |first|^2 and |second|^2 of each parameter, float64 [parameters, 3]; what is absent is 0."""
    device = next((one.device for one in (*first, *second) if one is not None), None)
    zero = torch.zeros((), device=device, dtype=torch.float64)

    def dot(a: Tensor | None, b: Tensor | None) -> Tensor:
        return zero if a is None or b is None else torch.dot(a.flatten(), b.flatten()).double()

    rows = [torch.stack([dot(a, b), dot(a, a), dot(b, b)]) for a, b in zip(first, second, strict=True)]
    return torch.stack(rows)


def by_unit(values: Tensor, units: Sequence[int]) -> Tensor:
    """Rows [parameters, n] added up to [units, n]: by a product, since a scattered sum on a GPU has no fixed order.

    Every rank computes this for itself, and all must find the same.
    """
    of = torch.tensor(units, device=values.device)
    member = of[None, :] == torch.arange(max(units) + 1, device=values.device)[:, None]
    return member.to(values) @ values
