"""A search space: dimensions plus constants, and every question about it that needs no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from raynas.config import Document, nearest, validate
from raynas.errors import ConfigError, UserError
from raynas.space.arch import Arch, flatten
from raynas.space.definition import InputConfig, SpaceConfig, read_dimensions, write_dimensions
from raynas.space.dimension import Choice, Dimension
from raynas.space.families import FAMILIES

INACTIVE = -1
"""The code of a gene that does not act."""

Codes = np.ndarray
"""Encoded archs, int16 [n, dimensions]: the index of each choice, or INACTIVE."""

Uniform = Literal["dimensions", "archs"]


@dataclass(frozen=True)
class Space:
    """A search space. Made by `raynas.load_space` or `Space.from_dict`.

    Attributes:
        family: the supernet family.
        name: what reports call it.
        input_size: image height and width in pixels.
        channels: image channels.
        classes: number of classes.
        constants: what is fixed (the family's constants model).
        dimensions: what may be chosen, parents before children.
    """

    family: str
    name: str = field(compare=False)
    input_size: tuple[int, int]
    channels: int
    classes: int
    constants: Any
    dimensions: tuple[Dimension, ...]

    # -- reading and writing ---------------------------------------------------------------------------------------

    @classmethod
    def from_dict(cls, definition: Mapping[str, Any], name: str = "space") -> Space:
        """Build a space from its written form (see `SpaceConfig`).

        Raises:
            ConfigError: the definition is wrong; the message says where and how.
        """
        return cls.from_document(Document(dict(definition), name), name)

    @classmethod
    def from_document(cls, document: Document, name: str, location: tuple[str, ...] = ()) -> Space:
        """Build a space from (a part of) a YAML document, with file and line in every error."""
        config = validate(SpaceConfig, document, location)
        if config.family not in FAMILIES:
            raise document.error((*location, "family"), f"unknown family{nearest(config.family, list(FAMILIES))}")
        family = FAMILIES[config.family]
        inner = Document({"constants": {}, **_at(document.data, location)}, document.source, document.lines)
        inner.lines = {place[len(location) :]: line for place, line in document.lines.items() if place[: len(location)] == location}
        constants = validate(family.constants, inner, ("constants",))
        dimensions = read_dimensions(inner, ("dimensions",), config.family)
        choices = {dimension.template: dimension.choices for dimension in dimensions}
        space = cls(
            family=config.family,
            name=config.name or name,
            input_size=config.input.size,
            channels=config.input.channels,
            classes=config.classes,
            constants=family.resolve(constants, choices),
            dimensions=dimensions,
        )
        try:
            family.check(space)
        except ValueError as error:
            raise inner.error((), str(error)) from error
        return space

    def to_dict(self) -> dict[str, Any]:
        """The written form; `Space.from_dict` reads it back as an equal space."""
        height, width = self.input_size
        return {
            "family": self.family,
            "name": self.name,
            "input": {"size": height if height == width else [height, width], "channels": self.channels},
            "classes": self.classes,
            "constants": self.constants.model_dump(),
            "dimensions": write_dimensions(self.dimensions),
        }

    def save(self, path: str | Path) -> None:
        """Write the space as a YAML file that `raynas.load_space` reads."""
        Path(path).write_text(yaml.safe_dump(self.to_dict(), sort_keys=False, default_flow_style=None, width=120))

    def __reduce__(self) -> tuple[Any, ...]:
        return Space.from_dict, (self.to_dict(),)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits hashed from everything but the name."""
        definition = self.to_dict()
        del definition["name"]
        return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def replace(self, **changes: Any) -> Space:
        """This space with some attributes changed, checked again."""
        return Space.from_dict(replace(self, **changes).to_dict())

    def with_input(
        self, size: int | tuple[int, int] | None = None, channels: int | None = None, classes: int | None = None
    ) -> Space:
        """This space for other images or classes."""
        chosen = InputConfig(size=size or self.input_size, channels=channels or self.channels)
        return self.replace(input_size=chosen.size, channels=chosen.channels, classes=classes or self.classes)

    # -- archs -----------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {dimension.name: index for index, dimension in enumerate(self.dimensions)}

    def __getitem__(self, name: str) -> Dimension:
        """The dimension of that name."""
        return self.dimensions[self._index[name]]

    def __contains__(self, arch: object) -> bool:
        """Whether an arch's values are all choices of this space."""
        try:
            return isinstance(arch, Mapping) and self.arch(arch) == arch
        except UserError:
            return False

    def arch(self, values: Mapping[str, Any]) -> Arch:
        """The canonical arch with these values, given by dotted names or nested as `Arch.to_dict` writes them.

        Genes that do not act under the others (blocks beyond the depth) are dropped.

        Raises:
            ConfigError: a name is unknown, a value is missing or not among the choices.
        """
        flat = flatten(values)
        for name in flat:
            if name not in self._index:
                raise ConfigError(f"space {self.name}: unknown dimension {name!r}{nearest(name, list(self._index))}")
        chosen: dict[str, Choice] = {}
        for dimension in self.dimensions:
            if dimension.parent is not None and chosen.get(dimension.parent) not in dimension.when:
                continue
            if dimension.name not in flat:
                raise ConfigError(f"space {self.name}: the arch says nothing of {dimension.name!r}")
            if flat[dimension.name] not in dimension.choices:
                raise ConfigError(
                    f"space {self.name}: {dimension.name} = {flat[dimension.name]!r} is not among its choices "
                    f"{list(dimension.choices)}"
                )
            # The choice itself, not what was given: 4 and 4.0 are one value.
            chosen[dimension.name] = dimension.choices[dimension.choices.index(flat[dimension.name])]
        return Arch(self, chosen)

    def smallest(self) -> Arch:
        """The arch of every first choice: the cheapest."""
        return self._extreme(0)

    def largest(self) -> Arch:
        """The arch of every last choice: the dearest."""
        return self._extreme(-1)

    def _extreme(self, index: int) -> Arch:
        return self.arch({dimension.name: dimension.choices[index] for dimension in self.dimensions})

    def fix(self, arch: Mapping[str, Any]) -> Space:
        """The space whose only arch is this one; its supernet is the subnet."""
        values = self.arch(arch)
        return replace(
            self,
            name=f"{self.name}/{values.id}",
            dimensions=tuple(
                replace(self[name], choices=(value,), when=self[name].when & {values.get(self[name].parent or "")})
                for name, value in values.items()
            ),
        )

    def off_grid(self, values: Mapping[str, Any]) -> Arch:
        """An arch whose values need not be choices of this space, in a one-point space with this space's constants."""
        flat = flatten(values)
        definition = self.to_dict()
        definition["dimensions"] = write_dimensions(Dimension(name, (value,)) for name, value in flat.items())
        return Space.from_dict(definition).arch(flat)

    def scaled(self, arch: Mapping[str, Any], macs: float) -> Arch:
        """An arch of the same shape with its widths scaled so that its MACs come nearest to `macs`.

        The widths are not choices of this space: the result has a one-point space of its own (`arch.space`).
        """
        from raynas.costs import scale_to_macs  # the one upward import: a question about a space that needs its costs

        return scale_to_macs(self.arch(arch) if arch in self else self.off_grid(arch), macs)

    def cardinality(self) -> int:
        """The exact number of archs."""
        total = 1
        for index, dimension in enumerate(self.dimensions):
            if dimension.parent is None:
                total *= sum(self._weights[index])
        return total

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in self.dimensions]
        for index, dimension in enumerate(self.dimensions):
            if dimension.parent is not None:
                children[self._index[dimension.parent]].append(index)
        return children

    @cached_property
    def _weights(self) -> list[list[int]]:
        """For every dimension, the number of archs below each of its choices (exact: Python integers)."""
        weights: list[list[int]] = [[] for _ in self.dimensions]
        for index in reversed(range(len(self.dimensions))):
            for choice in self.dimensions[index].choices:
                below = 1
                for child in self._children[index]:
                    if choice in self.dimensions[child].when:
                        below *= sum(weights[child])
                weights[index].append(below)
        return weights

    def enumerate(self) -> Iterator[Arch]:
        """Every arch once; for spaces small enough to be counted through."""
        return (Arch(self, values) for values in self._enumerate({}, 0))

    def _enumerate(self, chosen: dict[str, Choice], index: int) -> Iterator[dict[str, Choice]]:
        if index == len(self.dimensions):
            yield dict(chosen)
            return
        dimension = self.dimensions[index]
        if dimension.parent is not None and chosen.get(dimension.parent) not in dimension.when:
            yield from self._enumerate(chosen, index + 1)
            return
        for choice in dimension.choices:
            chosen[dimension.name] = choice
            yield from self._enumerate(chosen, index + 1)
        del chosen[dimension.name]

    # -- codes: many archs as one array ----------------------------------------------------------------------------

    def encode(self, archs: Iterable[Mapping[str, Choice]]) -> Codes:
        """Archs as choice indices, int16 [n, dimensions]; genes that do not act are INACTIVE."""
        rows = [
            [dimension.choices.index(arch[dimension.name]) if dimension.name in arch else INACTIVE for dimension in self.dimensions]
            for arch in archs
        ]
        return np.array(rows, dtype=np.int16).reshape(len(rows), len(self.dimensions))

    def decode(self, codes: Codes) -> list[Arch]:
        """The archs of encoded rows."""
        return [
            Arch(self, {d.name: d.choices[code] for d, code in zip(self.dimensions, row, strict=True) if code >= 0})
            for row in codes.tolist()
        ]

    def canonical(self, codes: Codes) -> Codes:
        """Codes with every gene that does not act set to INACTIVE; genes that act must have a choice."""
        codes = codes.copy()
        for index, dimension in enumerate(self.dimensions):
            if dimension.parent is not None:
                codes[~self._acts(codes, dimension), index] = INACTIVE
        return codes

    def _acts(self, codes: Codes, dimension: Dimension) -> np.ndarray:
        parent = self._index[dimension.parent or ""]
        on = [i for i, choice in enumerate(self.dimensions[parent].choices) if choice in dimension.when]
        return np.isin(codes[:, parent], on)

    def values(self, codes: Codes, name: str) -> np.ndarray:
        """The values of one dimension [n]; where it does not act, the value is 0."""
        choices = np.array([*self[name].choices, 0])
        return choices[codes[:, self._index[name]]]

    def one_hot(self, codes: Codes) -> np.ndarray:
        """Codes as float32 [n, sum of choices]: a one for each choice taken, nothing for genes that do not act."""
        columns = [codes[:, [i]] == np.arange(len(d.choices)) for i, d in enumerate(self.dimensions)]
        return np.concatenate(columns, axis=1).astype(np.float32)

    # -- sampling and variation ------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, uniform_over: Uniform = "dimensions") -> Arch:
        """One random arch; see `sample_codes`."""
        return self.decode(self.sample_codes(rng, 1, uniform_over))[0]

    def sample_codes(self, rng: np.random.Generator, n: int, uniform_over: Uniform = "dimensions") -> Codes:
        """n random archs as codes.

        Args:
            uniform_over: `dimensions` draws each dimension's choice uniformly, as the papers do (so every depth is
                equally likely, and small networks are over-represented); `archs` makes every arch equally likely,
                exactly.
        """
        codes = np.empty((n, len(self.dimensions)), dtype=np.int16)
        for index, dimension in enumerate(self.dimensions):
            if uniform_over == "dimensions":
                codes[:, index] = rng.integers(len(dimension.choices), size=n)
            else:
                codes[:, index] = _weighted(rng, self._weights[index], n)
        return self.canonical(codes)

    def mutate_codes(self, codes: Codes, rng: np.random.Generator, probability: float | Mapping[str, float]) -> Codes:
        """Each row with every gene redrawn (its present value included) with a probability.

        Args:
            probability: one for all genes, or by template with `"*"` for the rest: `{"depth": 0.4, "*": 0.2}`.
                Genes that begin to act (blocks added by a greater depth) are drawn at random.
        """
        rates = np.array([self._rate(dimension, probability) for dimension in self.dimensions])
        fresh = np.stack([rng.integers(len(d.choices), size=len(codes)) for d in self.dimensions], axis=1)
        redraw = (rng.random(codes.shape) < rates) | (codes == INACTIVE)
        return self.canonical(np.where(redraw, fresh, codes).astype(np.int16))

    def _rate(self, dimension: Dimension, probability: float | Mapping[str, float]) -> float:
        if not isinstance(probability, Mapping):
            return probability
        known = {d.template for d in self.dimensions} | {"*"}
        for key in probability:
            if key not in known:
                raise ConfigError(f"mutation probability for unknown dimension {key!r}{nearest(key, sorted(known))}")
        rate = probability.get(dimension.template, probability.get("*"))
        if rate is None:
            raise ConfigError(f"no mutation probability for {dimension.template!r}: name it, or give '*'")
        return rate

    def crossover_codes(
        self, first: Codes, second: Codes, rng: np.random.Generator, by: Literal["gene", "block"] = "gene"
    ) -> Codes:
        """Row i is a child of first[i] and second[i].

        Every gene (or every block as a whole) comes from either parent with equal chance; a gene that only one parent
        has comes from that one.
        """
        units = {unit: i for i, unit in enumerate(dict.fromkeys(d.unit if by == "block" else d.name for d in self.dimensions))}
        column = [units[d.unit if by == "block" else d.name] for d in self.dimensions]
        pick = rng.random((len(first), len(units)))[:, column] < 0.5
        child = np.where((pick & (first != INACTIVE)) | (second == INACTIVE), first, second)
        return self.canonical(child)

    def mutate(self, arch: Arch, rng: np.random.Generator, probability: float | Mapping[str, float] = 0.1) -> Arch:
        """One mutated arch; see `mutate_codes`."""
        return self.decode(self.mutate_codes(self.encode([arch]), rng, probability))[0]

    def crossover(self, first: Arch, second: Arch, rng: np.random.Generator, by: Literal["gene", "block"] = "gene") -> Arch:
        """One child of two archs; see `crossover_codes`."""
        return self.decode(self.crossover_codes(self.encode([first]), self.encode([second]), rng, by))[0]

    def neighbours(self, arch: Arch) -> list[Arch]:
        """Every arch one step away in one dimension; blocks that a step adds take their smallest choices."""
        fill = {dimension.name: dimension.choices[0] for dimension in self.dimensions}
        found = []
        for name, value in arch.items():
            choices = self[name].choices
            position = choices.index(value)
            for step in (position - 1, position + 1):
                if 0 <= step < len(choices):
                    found.append(self.arch({**fill, **arch, name: choices[step]}))
        return found


def _at(data: Any, location: Sequence[str]) -> Any:
    for part in location:
        data = data[part]
    return data


def _weighted(rng: np.random.Generator, weights: list[int], n: int) -> np.ndarray:
    """n indices, each drawn with probability exactly proportional to its (arbitrarily large) integer weight."""
    total = sum(weights)
    bounds = np.cumsum(np.array(weights, dtype=object))
    if total < 2**63:
        return np.searchsorted(bounds.astype(np.int64), rng.integers(total, size=n), side="right")
    size = (total.bit_length() + 7) // 8
    excess = size * 8 - total.bit_length()
    drawn = []
    while len(drawn) < n:  # rejection: fewer than two tries a draw on average
        number = int.from_bytes(rng.bytes(size), "little") >> excess
        if number < total:
            drawn.append(next(i for i, bound in enumerate(bounds) if number < bound))
    return np.array(drawn)

