"""A search space: dimensions plus constants, and every question about it that needs no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Number
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raynas.config import Document, nearest, shown, validate, write_yaml
from raynas.errors import ConfigError, UserError
from raynas.space import variation
from raynas.space.arch import Arch, flatten
from raynas.space.codes import INACTIVE, Codes
from raynas.space.counting import count_all, count_below, draw_weighted, every_choice
from raynas.space.definition import SpaceConfig, read_dimensions, rule_of, write_dimensions
from raynas.space.dimension import Choice, Dimension, same_kind, template_of
from raynas.space.families import FAMILIES
from raynas.space.variation import Probability

Uniform = Literal["dimensions", "archs"]

_OF_TRAINING = ("drop_path_depth", "drop_path_depths")
"""Constants that act in training alone, and that follow from a space's depths: published archs have their own."""

RESIZED = ("size", "depth_macs", "max_depth")
"""What of `Space.differences` changes where a network is resized to other images; see `Supernet.space_at`."""


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
        inner = document.part(location)
        if config.family not in FAMILIES:
            hint = nearest(config.family, list(FAMILIES))
            raise inner.error(("family",), f"unknown family {shown(config.family)}{hint}")
        family = FAMILIES[config.family]
        inner.data = {"constants": {}, **inner.data}
        constants = validate(family.constants, inner, ("constants",))
        dimensions = read_dimensions(inner, ("dimensions",), config.family, constants)
        space = cls(
            family=config.family,
            name=config.name or name,
            input_size=config.input.size,
            channels=config.input.channels,
            classes=config.classes,
            constants=family.resolve(constants, dimensions),
            dimensions=dimensions,
        )
        for place, problem in family.check(space):
            raise inner.error(place, problem)
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
        write_yaml(path, self.to_dict())

    def __reduce__(self) -> tuple[Any, ...]:
        return Space, tuple(getattr(self, attribute.name) for attribute in fields(self))  # without what is cached

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits hashed from everything but the name; a constant at its default is as if it were not there.

        So a family that gets a new option leaves the fingerprints of the spaces that do not use it as they were.
        """
        definition = {**self.to_dict(), "constants": self.constants.model_dump(exclude_defaults=True)}
        del definition["name"]
        return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def replace(self, **changes: Any) -> Space:
        """This space with some attributes changed, checked again."""
        return Space.from_dict(replace(self, **changes).to_dict(), self.name)

    def with_input(
        self, size: int | tuple[int, int] | None = None, channels: int | None = None, classes: int | None = None
    ) -> Space:
        """This space for other images or classes.

        Raises:
            ConfigError: the family cannot be built for them.
        """
        definition = self.to_dict()
        if size is not None:
            definition["input"]["size"] = size
        if channels is not None:
            definition["input"]["channels"] = channels
        if classes is not None:
            definition["classes"] = classes
        return Space.from_dict(definition, self.name)

    # -- archs -----------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> dict[str, int]:
        return {dimension.name: index for index, dimension in enumerate(self.dimensions)}

    def __getitem__(self, name: str) -> Dimension:
        """The dimension of that name."""
        return self.dimensions[self._index[name]]

    def has(self, name: str) -> bool:
        """Whether there is a dimension of that name."""
        return name in self._index

    def index(self, name: str) -> int:
        """The column of a dimension in codes."""
        return self._index[name]

    def __contains__(self, arch: object) -> bool:
        """Whether an arch's values are all choices of this space, and its constants this space's; see `arch`."""
        try:
            return isinstance(arch, Mapping) and dict(self.arch(arch)) == flatten(arch)
        except UserError:
            return False

    def differences(self, other: Space) -> dict[str, str]:
        """What another space fixes otherwise, in words by name: `{"size": "16 x 16 pixels, not 8 x 8"}`.

        Choices may differ. Of constants those count that a network computes by, and not those of its training alone.
        """
        found = {}
        if other.family != self.family:
            found["family"] = f"family {other.family}, not {self.family}"
        if other.input_size != self.input_size:
            (height, width), (own_height, own_width) = other.input_size, self.input_size
            found["size"] = f"{height} x {width} pixels, not {own_height} x {own_width}"
        for name in ("channels", "classes"):
            theirs, ours = getattr(other, name), getattr(self, name)
            if theirs != ours:
                found[name] = f"{name} {theirs}, not {ours}"
        if other.family == self.family and other.constants != self.constants:
            for name, ours in self.constants:
                theirs = getattr(other.constants, name)
                if theirs != ours and name not in _OF_TRAINING:
                    found[name] = f"{name} {shown(theirs)}, not {shown(ours)}"
        return found

    def check_own(self, arch: Arch, resized: bool = False) -> None:
        """Refuse an arch whose space fixes something otherwise: the same choices are another network there.

        Args:
            resized: whether it may be for images of another size, as the archs of a network that was resized are.

        Raises:
            ConfigError: names what differs.
        """
        if arch.space is self or arch.space.fingerprint == self.fingerprint:
            return
        differences = self.differences(arch.space)
        if told := [words for name, words in differences.items() if not (resized and name in RESIZED)]:
            raise ConfigError(f"arch {arch.id} has other constants than space {self.name}: {'; '.join(told)}")

    def arch(self, values: Mapping[str, Any]) -> Arch:
        """The canonical arch with these values, given by dotted names or nested as `Arch.to_dict` writes them.

        Genes that do not act under the others (blocks beyond the depth) are dropped. An arch may be for images of
        another size; its values alone, whatever it was made for, are `dict(arch)`.

        Raises:
            ConfigError: a name is unknown, a value is missing or not among the choices; or an arch has other constants
                than this space (see `check_own`).
        """
        flat = flatten(values)
        for name in flat:
            if name not in self._index:
                raise self._unknown(name)
        chosen: dict[str, Choice] = {}
        for dimension in self.dimensions:
            if not dimension.acts_under(chosen):
                continue
            if dimension.name not in flat:
                raise ConfigError(f"space {self.name}: the arch says nothing of {dimension.name!r}")
            chosen[dimension.name] = self._choice(dimension, flat[dimension.name])
        if isinstance(values, Arch):
            self.check_own(values, resized=True)
        return Arch(self, chosen)

    def _choice(self, dimension: Dimension, value: Any) -> Choice:
        for choice in dimension.choices:
            if same_kind(value, choice) and isinstance(value, Number) and value == choice:
                return choice  # the choice itself, not what was given: 4 and 4.0 are one value
        listed = shown(list(dimension.choices))
        raise ConfigError(f"space {self.name}: {dimension.name} = {shown(value)} is not among its choices {listed}")

    def _unknown(self, name: str) -> ConfigError:
        templates = list(dict.fromkeys(dimension.template for dimension in self.dimensions))
        template = template_of(name)
        if template in templates:
            return ConfigError(f"space {self.name}: has no {shown(name)}: fewer blocks than that")
        hint = nearest(template, templates)
        return ConfigError(f"space {self.name}: unknown dimension {shown(template)}{hint}")

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
        """An arch whose values need not be choices of this space, in a one-point space with this space's constants.

        Raises:
            ConfigError: the family cannot build it, or it has other constants than this space (see `check_own`).
        """
        if isinstance(values, Arch):
            self.check_own(values, resized=True)
        flat = flatten(values)
        for name in flat:
            if rule_of(self.family, name) is None:
                raise self._unknown(name)
        definition = self.to_dict()
        definition["dimensions"] = write_dimensions(Dimension(name, (value,)) for name, value in flat.items())
        return Space.from_dict(definition, self.name).arch(flat)

    def scaled(self, arch: Mapping[str, Any], macs: float) -> Arch:
        """An arch of the same shape with its widths scaled so that its MACs come nearest to `macs`.

        The shape may be that of an arch for other images. The widths are not choices of this space: the result has a
        one-point space of its own (`arch.space`).
        """
        from raynas.costs import scale_to_macs  # the one upward import: a question about a space that needs its costs

        shape = dict(arch)  # the values alone: it may have been designed for other images and classes
        return scale_to_macs(self.arch(shape) if shape in self else self.off_grid(shape), macs)

    def cardinality(self) -> int:
        """The exact number of archs."""
        return count_all(self.dimensions, self._below)

    @cached_property
    def _below(self) -> list[list[int]]:
        return count_below(self.dimensions)

    def enumerate(self) -> Iterator[Arch]:
        """Every arch once; for spaces small enough to be counted through."""
        return (Arch(self, values) for values in every_choice(self.dimensions))

    # -- codes: many archs as one array ----------------------------------------------------------------------------

    def encode(self, archs: Iterable[Mapping[str, Choice]]) -> Codes:
        """Archs as choice indices, int16 [n, dimensions]; genes that do not act are INACTIVE.

        Raises:
            ConfigError: an arch is not one of this space.
        """
        rows = []
        for arch in archs:
            if not (isinstance(arch, Arch) and (arch.space is self or arch.space.fingerprint == self.fingerprint)):
                arch = self.arch(arch)
            rows.append([codes[arch[name]] if name in arch else INACTIVE for name, codes in self._codes.items()])
        return np.array(rows, dtype=np.int16).reshape(len(rows), len(self.dimensions))

    @cached_property
    def _codes(self) -> dict[str, dict[Choice, int]]:
        return {d.name: {choice: code for code, choice in enumerate(d.choices)} for d in self.dimensions}

    def decode(self, codes: Codes) -> list[Arch]:
        """The archs of encoded rows, which must be canonical."""
        return [
            Arch(self, {d.name: d.choices[code] for d, code in zip(self.dimensions, row, strict=True) if code >= 0})
            for row in codes.tolist()
        ]

    def canonical(self, codes: Codes) -> Codes:
        """Codes with every gene that does not act set to INACTIVE; genes that act must have a choice."""
        codes = codes.copy()
        for index, dimension in enumerate(self.dimensions):
            if dimension.parent is not None:
                parent = self._index[dimension.parent]
                on = [choice in dimension.when for choice in self.dimensions[parent].choices]
                # INACTIVE, -1, reads the False at the end.
                np.copyto(codes[:, index], INACTIVE, where=~np.array([*on, False])[codes[:, parent]])
        return codes

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
        if uniform_over not in ("dimensions", "archs"):
            raise ConfigError(
                f"uniform_over {shown(uniform_over)}{nearest(str(uniform_over), ['dimensions', 'archs'])}"
            )
        codes = np.empty((n, len(self.dimensions)), dtype=np.int16)
        for index, dimension in enumerate(self.dimensions):
            if uniform_over == "dimensions":
                codes[:, index] = rng.integers(len(dimension.choices), size=n)
            else:  # exact: whether a gene acts depends on its parents alone, and they were drawn by what hangs on them
                codes[:, index] = draw_weighted(rng, self._below[index], n)
        return self.canonical(codes)

    def deal_codes(self, rng: np.random.Generator, n: int) -> Codes:
        """n random archs that differ as much as they can: each dimension's choices are dealt out to them.

        Each choice is given to as many archs as any other, to within one (ViT-ResNAS's release, nearly). Each arch
        alone is as `sample_codes` draws it, uniform over dimensions.
        """
        codes = np.empty((n, len(self.dimensions)), dtype=np.int16)
        for index, dimension in enumerate(self.dimensions):
            choices = len(dimension.choices)
            rounds = [rng.permutation(choices) for _ in range(-(-n // choices))]
            codes[:, index] = rng.permutation(np.concatenate(rounds)[:n]) if n else []
        return self.canonical(codes)

    def widest(self, share: float) -> Space:
        """The space of the dearest choices alone: of m choices the last 1 + floor(share (m - 1)).

        At 0 that is the largest arch, at 1 the whole space. Blocks that may be dropped count as four choices, two of
        them to keep it, and so are dropped from two thirds on (ViT-ResNAS's release).
        """
        return variation.widest(self, share)

    def mutate_codes(
        self, codes: Codes, rng: np.random.Generator, probability: Probability, change: bool = False
    ) -> Codes:
        """Each row with every gene redrawn with a probability.

        Args:
            probability: one for all genes, or by template with `"*"` for the rest: `{"depth": 0.4, "*": 0.2}`.
                Genes that begin to act (blocks added by a greater depth) are drawn at random.
            change: whether a gene that is redrawn takes another value, where it has one (AlphaNet); else it may take
                its present value again (AutoFormer).
        """
        return variation.mutate(self, codes, rng, probability, change)

    def mutation_rates(self, probability: Probability) -> np.ndarray:
        """The probability of each gene of being redrawn, float64 [dimensions]; see `mutate_codes`."""
        return variation.mutation_rates(self, probability)

    def crossover_codes(
        self, first: Codes, second: Codes, rng: np.random.Generator, by: Literal["gene", "block"] = "gene"
    ) -> Codes:
        """Row i is a child of first[i] and second[i].

        Every gene (or every block as a whole) comes from either parent with equal chance; a gene that only one parent
        has comes from that one.
        """
        return variation.cross(self, first, second, rng, by)

    def mutate(self, arch: Arch, rng: np.random.Generator, probability: Probability = 0.1) -> Arch:
        """One mutated arch; see `mutate_codes`."""
        return self.decode(self.mutate_codes(self.encode([arch]), rng, probability))[0]

    def crossover(
        self, first: Arch, second: Arch, rng: np.random.Generator, by: Literal["gene", "block"] = "gene"
    ) -> Arch:
        """One child of two archs; see `crossover_codes`."""
        return self.decode(self.crossover_codes(self.encode([first]), self.encode([second]), rng, by))[0]

    def neighbours(self, arch: Arch) -> list[Arch]:
        """Every arch one step away in one dimension; blocks that a step adds take their smallest choices."""
        return variation.neighbours(self, arch)
