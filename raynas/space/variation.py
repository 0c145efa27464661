"""Mutation, crossover and neighbours of archs, and the widest part of a space.

Users call these as methods of `Space`, which document their arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from raynas.errors import ConfigError
from raynas.space.arch import Arch
from raynas.space.codes import INACTIVE, Codes
from raynas.space.dimension import Dimension
from raynas.text import nearest, shown

if TYPE_CHECKING:
    from raynas.space.space import Space

Probability = float | Mapping[str, float]
"""Probability of redrawing a gene: one for all, or by template with `"*"` for the rest: `{"depth": 0.4, "*": 0.2}`."""


def mutate(space: Space, codes: Codes, rng: np.random.Generator, probability: Probability, change: bool) -> Codes:
    """Mutate codes; see `Space.mutate_codes`."""
    sizes = [len(dimension.choices) for dimension in space.dimensions]
    fresh = np.stack([rng.integers(size, size=len(codes)) for size in sizes], axis=1)
    redraw = (rng.random(codes.shape) < mutation_rates(space, probability)) | (codes == INACTIVE)
    if change:
        steps = np.stack([rng.integers(1, max(size, 2), size=len(codes)) for size in sizes], axis=1)
        fresh = np.where(codes == INACTIVE, fresh, (codes + steps) % sizes)
    return space.canonical(np.where(redraw, fresh, codes).astype(np.int16))


def mutation_rates(space: Space, probability: Probability) -> np.ndarray:
    """Return the mutation rate of each gene; see `Space.mutation_rates`."""
    return np.array([_rate(space, dimension, probability) for dimension in space.dimensions], dtype=np.float64)


def _rate(space: Space, dimension: Dimension, probability: Probability) -> float:
    rate: float | None
    if isinstance(probability, Mapping):
        known = {d.template for d in space.dimensions} | {"*"}
        for key in probability:
            if key not in known:
                hint = nearest(str(key), sorted(known))
                raise ConfigError(f"mutation probability for unknown dimension {shown(key)}{hint}")
        rate = probability.get(dimension.template, probability.get("*"))
        if rate is None:
            raise ConfigError(f"no mutation probability for {dimension.template!r}: name it, or give '*'")
    else:
        rate = probability
    if not 0 <= rate <= 1:
        raise ConfigError(f"mutation probability {shown(rate)} is not between 0 and 1")
    return rate


def cross(space: Space, first: Codes, second: Codes, rng: np.random.Generator, by: Literal["gene", "block"]) -> Codes:
    """Cross two parents' codes; see `Space.crossover_codes`."""
    if by not in ("gene", "block"):
        raise ConfigError(f"crossover by {shown(by)}{nearest(str(by), ['gene', 'block'])}")
    unit_of = [dimension.unit if by == "block" else dimension.name for dimension in space.dimensions]
    units = list(dict.fromkeys(unit_of))
    pick = rng.random((len(first), len(units)))[:, [units.index(unit) for unit in unit_of]] < 0.5
    child = np.where((pick & (first != INACTIVE)) | (second == INACTIVE), first, second)
    return space.canonical(child)


def neighbours(space: Space, arch: Arch) -> list[Arch]:
    """Return the archs one step away; see `Space.neighbours`."""
    fill = {dimension.name: dimension.choices[0] for dimension in space.dimensions}
    found = []
    for name, value in arch.items():
        choices = space[name].choices
        position = choices.index(value)
        for step in (position - 1, position + 1):
            if 0 <= step < len(choices):
                found.append(space.arch({**fill, **arch, name: choices[step]}))
    return found


def widest(space: Space, share: float) -> Space:
    """Return the space of the most expensive choices; see `Space.widest`."""
    dimensions = []
    for dimension in space.dimensions:
        copies = 2 if dimension.name.endswith("kept") else 1
        steps = copies * len(dimension.choices) - 1
        # Shares are ratios of epochs: 1e-9 keeps a float just below a whole step from losing it.
        count = 1 + int(min(max(share, 0.0), 1.0) * steps + 1e-9)
        dimensions.append(replace(dimension, choices=dimension.choices[-math.ceil(count / copies) :]))
    return replace(space, dimensions=tuple(dimensions))
