"""Projection of conflicting gradients (NASViT, Section 4.1), and the inner products that detect conflicts.

The largest subnet's gradient s and the sum b of the others' conflict if <s, b> < 0. One of them is then projected: its
component along the other is removed (Equation 1), separately in each unit of the network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raynas.errors import ConfigError
from raynas.text import nearest, shown
from raynas.training.gradients import LARGEST, SUBNETS, Gradients, added, by_role, checked_limit, clipped
from raynas.training.samplers import Pass

UNITS = ("tensor", "layer", "model")
_CHOICES = {"priority": (SUBNETS, LARGEST), "unit": UNITS, "form": ("exact", "released")}

RELEASED_EPSILON, RELEASED_CAP = 1e-6, 2.0


class Project:
    """The sum of the largest subnet's gradient and the others', with one of them projected if they conflict.

    Args:
        priority: `subnets` projects the largest's gradient (NASViT), `largest` the others' sum.
        unit: unit of projection: each `tensor` (the release), each `layer` (the paper's statistics; see `layer_of`) or
            the whole `model` (Equation 1 as written).
        form: `exact`; or `released`: the coefficient of the removed component is -<s, b> / (1e-6 + |b|^2), at most 2.
        start: share of the epochs before projection begins; until then gradients are only added (the release: 0.2525,
            which is epoch 101 of 400).
        clip_subnets: largest global norm of the others' sum, clipped first (the release: 1.0); None does not clip it.
            `recipe.clip_grad` clips the result.

    Raises:
        ConfigError: an option has an unknown value.
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
        """Return the change of `yields` by projection on the normal plane of `keeps`: a multiple of `keeps`."""
        units = unit_of(names, self.unit)
        inner, _, squares = by_unit(products(yields, keeps), units).unbind(1)
        if self.released:
            factors = (-inner / (squares + RELEASED_EPSILON)).clamp(0, RELEASED_CAP)
        else:  # the inner product is 0 too if `keeps` has no gradient
            factors = -inner.clamp(max=0) / torch.where(squares > 0, squares, 1.0)
        return [None if one is None else one * factors[unit].to(one) for one, unit in zip(keeps, units, strict=True)]


def layer_of(parameter: str) -> str:
    """Return the layer of a parameter: its module (`blocks.3.attn.qkv`), or the parameter itself at the top level."""
    return parameter.rpartition(".")[0] or parameter


def unit_of(names: Sequence[str], unit: str) -> list[int]:
    """Return each parameter's unit, numbered in the order of their first parameters."""
    keys = {"tensor": list(names), "layer": [layer_of(name) for name in names], "model": [""] * len(names)}[unit]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys]


def products(first: Gradients, second: Gradients) -> Tensor:
    """Return <first, second>, |first|^2, |second|^2 of each parameter, float64 [parameters, 3]; 0 if absent."""
    device = next((one.device for one in (*first, *second) if one is not None), None)
    zero = torch.zeros((), device=device, dtype=torch.float64)

    def dot(a: Tensor | None, b: Tensor | None) -> Tensor:
        return zero if a is None or b is None else torch.dot(a.flatten(), b.flatten()).double()

    rows = [torch.stack([dot(a, b), dot(a, a), dot(b, b)]) for a, b in zip(first, second, strict=True)]
    return torch.stack(rows)


def by_unit(values: Tensor, units: Sequence[int]) -> Tensor:
    """Add up rows [parameters, n] to [units, n] by a matrix product.

    A scattered sum has no fixed order on a GPU, and every rank must get the same result.
    """
    of = torch.tensor(units, device=values.device)
    member = of[None, :] == torch.arange(max(units) + 1, device=values.device)[:, None]
    return member.to(values) @ values
