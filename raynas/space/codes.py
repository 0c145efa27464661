"""Archs encoded as one array, and all that is done to them as such: drawing, mutation and crossover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from raynas.arguments import check_generator
from raynas.errors import ConfigError
from raynas.space.counting import count_all, count_below, draw_weighted
from raynas.space.dimension import Dimension
from raynas.text import nearest, shown

Codes = np.ndarray
"""Encoded archs, int16 [n, dimensions]: the index of each choice, or INACTIVE."""

INACTIVE = -1
"""The code of an inactive gene."""

_FEW = 4096
"""Numbers up to which they are drawn in one call; more are drawn by dimension, which is faster then."""

_ROWS = 4096
"""Rows that are made canonical at a time, so that what is made on the way stays small."""

Probability = float | Mapping[str, float]
"""Probability of redrawing a gene: one for all, or by template with `"*"` for the rest: `{"depth": 0.4, "*": 0.2}`."""

Uniform = Literal["dimensions", "archs"]


@dataclass(frozen=True)
class CodedSpace:
    """The values of a search space, and its archs as codes; `Space` adds archs as mappings, and files.

    Attributes:
        family: the supernet family.
        name: its name in reports.
        input_size: image height and width in pixels.
        channels: image channels.
        classes: number of classes.
        constants: fixed values (the family's constants model).
        dimensions: searchable choices, parents before children.
    """

    family: str
    name: str = field(compare=False)
    input_size: tuple[int, int]
    channels: int
    classes: int
    constants: Any
    dimensions: tuple[Dimension, ...]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {dimension.name: index for index, dimension in enumerate(self.dimensions)}

    def __getitem__(self, name: str) -> Dimension:
        """Return the dimension of that name."""
        return self.dimensions[self._index[name]]

    def has(self, name: str) -> bool:
        """Return True if there is a dimension of that name."""
        return name in self._index

    def index(self, name: str) -> int:
        """Return the column of a dimension in codes."""
        return self._index[name]

    @cached_property
    def _sizes(self) -> np.ndarray:
        """The number of choices of each dimension [dimensions]."""
        return np.array([len(dimension.choices) for dimension in self.dimensions])

    # -- counting and drawing --------------------------------------------------------------------------------------

    def cardinality(self) -> int:
        """Return the exact number of archs."""
        return count_all(self.dimensions, self._below)

    @cached_property
    def _below(self) -> list[list[int]]:
        return count_below(self.dimensions)

    def sample_codes(self, rng: np.random.Generator, n: int, uniform_over: Uniform = "dimensions") -> Codes:
        """Draw n random archs as codes.

        Args:
            rng: the random stream.
            n: number of archs.
            uniform_over: `dimensions` draws each dimension's choice uniformly, as the papers do (so every depth is
                equally likely, and small networks are over-represented); `archs` makes every arch equally likely,
                exactly.

        Raises:
            UserError: rng is no generator, or there is no such `uniform_over`.
        """
        check_generator(rng)
        if uniform_over not in ("dimensions", "archs"):
            raise ConfigError(
                f"uniform_over {shown(uniform_over)}{nearest(str(uniform_over), ['dimensions', 'archs'])}"
            )
        if uniform_over == "dimensions":
            return self.canonical(_draw(rng, 0, self._sizes, n))
        codes = np.empty((n, len(self.dimensions)), dtype=np.int16)
        for index, below in enumerate(self._below):  # exact: a choice's weight is the number of ways to choose below it
            codes[:, index] = draw_weighted(rng, below, n)
        return self.canonical(codes)

    def deal_codes(self, rng: np.random.Generator, n: int) -> Codes:
        """Draw n random archs that differ as much as possible, by dealing out each dimension's choices to them.

        The counts of a dimension's choices differ by at most one (nearly as in ViT-ResNAS's release). Each single arch
        is distributed as by `sample_codes`, uniform over dimensions.
        """
        check_generator(rng)
        codes = np.empty((n, len(self.dimensions)), dtype=np.int16)
        for index, dimension in enumerate(self.dimensions):
            choices = len(dimension.choices)
            rounds = [rng.permutation(choices) for _ in range(-(-n // choices))]
            codes[:, index] = rng.permutation(np.concatenate(rounds)[:n]) if n else []
        return self.canonical(codes)

    # -- variation -------------------------------------------------------------------------------------------------

    def mutate_codes(
        self, codes: Codes, rng: np.random.Generator, probability: Probability, change: bool = False
    ) -> Codes:
        """Mutate each row by redrawing every gene with a probability.

        Genes that become active (of blocks added by a greater depth) are drawn at random.

        Args:
            probability: one for all genes, or by template with `"*"` for the rest: `{"depth": 0.4, "*": 0.2}`.
            change: True to redraw among a gene's other values, if it has any (AlphaNet); False to include its present
                value (AutoFormer).
        """
        check_generator(rng)
        fresh = _draw(rng, 0, self._sizes, len(codes))
        redraw = (rng.random(codes.shape) < self.mutation_rates(probability)) | (codes == INACTIVE)
        if change:
            steps = _draw(rng, 1, np.maximum(self._sizes, 2), len(codes))
            fresh = np.where(codes == INACTIVE, fresh, (codes + steps) % self._sizes)
        return self.canonical(np.where(redraw, fresh, codes).astype(np.int16))

    def mutation_rates(self, probability: Probability) -> np.ndarray:
        """Return each gene's probability of being redrawn, float64 [dimensions]; see `mutate_codes`."""
        return np.array([self._rate(dimension, probability) for dimension in self.dimensions], dtype=np.float64)

    def _rate(self, dimension: Dimension, probability: Probability) -> float:
        rate: float | None
        if isinstance(probability, Mapping):
            known = {d.template for d in self.dimensions} | {"*"}
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

    def crossover_codes(
        self, first: Codes, second: Codes, rng: np.random.Generator, by: Literal["gene", "block"] = "gene"
    ) -> Codes:
        """Cross the rows of two parents: row i is a child of first[i] and second[i].

        Every gene (or every whole block) comes from either parent with equal probability; a gene that only one parent
        has comes from that parent.
        """
        check_generator(rng)
        if by not in ("gene", "block"):
            raise ConfigError(f"crossover by {shown(by)}{nearest(str(by), ['gene', 'block'])}")
        pick = rng.random((len(first), len(self.dimensions) if by == "gene" else self._blocks[-1] + 1)) < 0.5
        if by == "block":
            pick = pick[:, self._blocks]
        child = np.where((pick & (first != INACTIVE)) | (second == INACTIVE), first, second)
        return self.canonical(child)

    @cached_property
    def _blocks(self) -> np.ndarray:
        """The unit of block-wise crossover of each dimension, numbered in order, [dimensions]."""
        number = {unit: place for place, unit in enumerate(dict.fromkeys(each.unit for each in self.dimensions))}
        return np.array([number[each.unit] for each in self.dimensions])

    # -- codes as other arrays -------------------------------------------------------------------------------------

    def canonical(self, codes: Codes) -> Codes:
        """Return codes with every inactive gene set to INACTIVE; active genes must have a choice."""
        codes = codes.copy()
        for start in range(0, len(codes), _ROWS):
            rows = codes[start : start + _ROWS]
            for parents, places, masks in self._switches:
                rows |= masks.take(rows.take(parents, axis=1) + places)
        return codes

    @cached_property
    def _switches(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Masks that set inactive genes to INACTIVE: first children of parents without parents, then theirs, and so on.

        Each item is, for every dimension, the column of its parent [dimensions] and the place of the parent's first
        choice among the masks [dimensions]; a mask is INACTIVE (all bits set, so that any code joined with it by "or"
        is INACTIVE, too) or 0. The place before the first choice is that of an inactive parent.
        """
        depths: list[int] = []
        for dimension in self.dimensions:
            depths.append(0 if dimension.parent is None else 1 + depths[self._index[dimension.parent]])
        found = []
        for depth in range(1, 1 + max(depths, default=0)):
            parents = np.arange(len(depths))
            masks = np.zeros((len(depths), 1 + self._sizes.max()), dtype=np.int16)
            for index, dimension in enumerate(self.dimensions):
                if dimension.parent is not None and depths[index] == depth:
                    parents[index] = self._index[dimension.parent]
                    acts = [choice in dimension.when for choice in self[dimension.parent].choices]
                    masks[index, : 1 + len(acts)] = np.where([False, *acts], 0, INACTIVE)
            found.append((parents, 1 + masks.shape[1] * np.arange(len(depths)), masks.ravel()))
        return found

    def values(self, codes: Codes, name: str) -> np.ndarray:
        """Return the values of one dimension [n], 0 where it is inactive."""
        choices = np.array([*self[name].choices, 0])
        return choices[codes[:, self._index[name]]]

    def one_hot(self, codes: Codes) -> np.ndarray:
        """Return codes one-hot, float32 [n, sum of choices]; inactive genes are all zeros."""
        columns = [codes[:, [i]] == np.arange(len(d.choices)) for i, d in enumerate(self.dimensions)]
        return np.concatenate(columns, axis=1).astype(np.float32)


def _draw(rng: np.random.Generator, low: int, high: np.ndarray, n: int) -> Codes:
    """Draw n numbers of each range [low, high[i]), int16 [n, ranges]: all numbers of a range before the next one's."""
    if n * len(high) <= _FEW:
        return rng.integers(low, high[:, None], size=(len(high), n)).astype(np.int16).T
    drawn = np.empty((n, len(high)), dtype=np.int16)
    for index, most in enumerate(high):
        drawn[:, index] = rng.integers(low, most, size=n)
    return drawn
