"""A search space: its dimensions and constants, and all operations that need no network."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Number
from operator import getitem, itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raynas.arguments import checked
from raynas.config import validate
from raynas.documents import Document, write_yaml
from raynas.errors import ConfigError, UserError
from raynas.space.codes import INACTIVE, CodedSpace, Codes, Probability, Uniform
from raynas.space.counting import every_code
from raynas.space.definition import SpaceConfig, read_dimensions, rule_of, write_dimensions
from raynas.space.dimension import Choice, Dimension, same_kind, template_of
from raynas.space.families import FAMILIES, family_of
from raynas.space.values import as_digested, digest, digest_written, flatten, nest, without_dropped
from raynas.text import nearest, shown

_OF_TRAINING = ("drop_path_depth", "drop_path_depths")
"""Constants that act in training only and default to the space's depths, so that published archs differ in them."""

RESIZED = ("size", "depth_macs", "max_depth", "windows_for")
"""Names in `Space.differences` that change if a network is resized to other images; see `Supernet.space_at`."""


class Arch(Mapping[str, Choice]):
    """A frozen, hashable, canonical mapping of dimension names to values; made by `Space.arch` and similar methods.

    It holds active genes only (a block beyond the depth has none), so archs that use the same weights are equal. The
    values are read from its code when they are first needed: many archs are drawn, and few are looked at.
    """

    __slots__ = ("_code", "_hash", "_id", "_read", "_space")

    def __init__(self, space: Space, code: bytes):
        """Make the arch of a canonical row of codes, int16 [dimensions]."""
        self._space, self._code = space, code
        self._read: dict[str, Choice] | None = None
        self._hash: int | None = None
        self._id = ""

    def __reduce__(self) -> tuple[Any, ...]:
        # Keeps a pickled list of archs small: the space once, then two bytes a gene.
        return Arch, (self._space, self._code)

    @property
    def space(self) -> Space:
        """The space whose arch it is."""
        return self._space

    @property
    def _values(self) -> dict[str, Choice]:
        if self._read is None:
            pairs = zip(self._space.dimensions, memoryview(self._code).cast("h"), strict=True)
            self._read = {dimension.name: dimension.choices[code] for dimension, code in pairs if code >= 0}
        return self._read

    def __getitem__(self, name: str) -> Choice:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._values.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arch):
            return NotImplemented
        return self._code == other._code if self._space is other._space else self._values == other._values

    def __repr__(self) -> str:
        return f"Arch({self.id}: {json.dumps(self.to_dict())})"

    @property
    def id(self) -> str:
        """Twelve hex digits, the hash of names and values: the same in every process, space file and version."""
        if not self._id:
            self._id = self._space.digest_row(self._code)
        return self._id

    @property
    def network_id(self) -> str:
        """The id of the network that this arch computes, shared by archs that differ only in inherited weights.

        If any block can be dropped, archs that keep equal blocks in the same order are the same network: they share
        this id, but not `id`. So do archs that differ only in windows larger than their grid.
        """
        acting = family_of(self._space.family).acting
        if acting is None and not self._space.drops_blocks:
            return self.id
        return digest(without_dropped(self if acting is None else acting(self._space, self)))

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values; per-block values are lists over blocks: `{"blocks": {"heads": [3, 4]}}`."""
        return nest(self._values)


@dataclass(frozen=True)
class Space(CodedSpace):
    """A search space; made by `raynas.load_space` or `Space.from_dict`. Its attributes are those of `CodedSpace`."""

    # -- reading and writing ---------------------------------------------------------------------------------------

    @classmethod
    @checked()
    def from_dict(cls, definition: Mapping[str, Any], name: str = "space") -> Space:
        """Build a space from its written form (see `SpaceConfig`).

        Raises:
            ConfigError: the definition is wrong; the message names the place and the fault.
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
        family = family_of(config.family)
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
        """Return the written form, which `Space.from_dict` reads back as an equal space."""
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
        return Space, tuple(getattr(self, attribute.name) for attribute in fields(self))  # without cached values

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits, the hash of everything except the name and constants at their defaults.

        A new option of a family therefore leaves the fingerprints of spaces that do not use it unchanged.
        """
        definition = {**self.to_dict(), "constants": self.constants.model_dump(exclude_defaults=True)}
        del definition["name"]
        return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def replace(self, **changes: Any) -> Space:
        """Return this space with some attributes changed, checked again."""
        return Space.from_dict(replace(self, **changes).to_dict(), self.name)

    def with_input(
        self, size: int | tuple[int, int] | None = None, channels: int | None = None, classes: int | None = None
    ) -> Space:
        """Return this space for other images or classes.

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

    def __contains__(self, arch: object) -> bool:
        """Return True if an arch's values are all choices of this space, and its constants this space's."""
        try:
            return isinstance(arch, Mapping) and dict(self.arch(arch)) == flatten(arch)
        except UserError:
            return False

    def differences(self, other: Space) -> dict[str, str]:
        """Return the differences of another space, as text by name: `{"size": "16 x 16 pixels, not 8 x 8"}`.

        Compared are family, images, classes and constants, without choices and constants of training only.
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

    def check_own(self, arch: Arch) -> None:
        """Refuse an arch whose space has other constants, with which the same choices are another network."""
        if arch.space is self or arch.space.fingerprint == self.fingerprint:
            return
        if differences := self.differences(arch.space):
            told = "; ".join(differences.values())
            raise ConfigError(f"arch {arch.id} has other constants than space {self.name}: {told}")

    def arch(self, values: Mapping[str, Any]) -> Arch:
        """Build the canonical arch from values given by dotted names or nested as `Arch.to_dict` writes them.

        Inactive genes (of blocks beyond the depth) are dropped. An `Arch` of another space gives its values
        alone; `check_own` tells whether its constants are this space's.

        Raises:
            ConfigError: a name is unknown, or a value is missing or not among the choices.
        """
        flat = self._values(values)
        for name in flat:
            if name not in self._index:
                raise self._unknown(name)
        chosen: dict[str, Choice] = {}
        code = np.full(len(self.dimensions), INACTIVE, dtype=np.int16)
        for index, dimension in enumerate(self.dimensions):
            if not dimension.acts_under(chosen):
                continue
            if dimension.name not in flat:
                raise ConfigError(f"space {self.name}: the arch has no value for {dimension.name!r}")
            code[index] = self._code_of(dimension, flat[dimension.name])
            chosen[dimension.name] = dimension.choices[code[index]]
        return Arch(self, code.tobytes())

    @staticmethod
    def _values(values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by dotted name."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"expected an arch, or a mapping of its values by name, found {shown(values)}")
        return flatten(values)

    def _code_of(self, dimension: Dimension, value: Any) -> int:
        for code, choice in enumerate(dimension.choices):
            if same_kind(value, choice) and isinstance(value, Number) and value == choice:
                return code
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
        """Return the arch of all first choices, the cheapest."""
        return self._extreme(0)

    def largest(self) -> Arch:
        """Return the arch of all last choices, the most expensive."""
        return self._extreme(-1)

    def _extreme(self, index: int) -> Arch:
        return self.arch({dimension.name: dimension.choices[index] for dimension in self.dimensions})

    def fix(self, arch: Mapping[str, Any]) -> Space:
        """Return the space whose only arch is this one; its supernet is the subnet."""
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
        """Build an arch from values outside this space's choices, in a one-point space with this space's constants.

        Raises:
            ConfigError: the family cannot build it.
        """
        flat = self._values(values)
        for name in flat:
            if rule_of(self.family, name) is None:
                raise self._unknown(name)
        definition = self.to_dict()
        definition["dimensions"] = write_dimensions(Dimension(name, (value,)) for name, value in flat.items())
        return Space.from_dict(definition, self.name).arch(flat)

    def enumerate(self) -> Iterator[Arch]:
        """Yield every arch once; for small spaces."""
        return (Arch(self, code.tobytes()) for code in every_code(self.dimensions))

    # -- codes: many archs as one array ----------------------------------------------------------------------------

    def encode(self, archs: Iterable[Mapping[str, Choice]]) -> Codes:
        """Encode archs as choice indices, int16 [n, dimensions]; inactive genes are INACTIVE.

        Raises:
            ConfigError: an arch is not in this space.
        """
        if isinstance(archs, Mapping) or not isinstance(archs, Iterable):
            raise ConfigError(f"expected archs in a list, found {shown(archs)}")
        rows = []
        for arch in archs:
            if not (isinstance(arch, Arch) and (arch._space is self or arch._space._shares_codes(self))):
                arch = self.arch(arch)
            rows.append(arch._code)
        return np.frombuffer(bytearray().join(rows), dtype=np.int16).reshape(len(rows), len(self.dimensions))

    def _shares_codes(self, other: Space) -> bool:
        # Files may list the same dimensions in another order, which the fingerprint does not see.
        return self.fingerprint == other.fingerprint and list(self._index) == list(other._index)

    def decode(self, codes: Codes) -> list[Arch]:
        """Return the archs of encoded rows, which must be canonical."""
        return [Arch(self, row.tobytes()) for row in codes.astype(np.int16)]

    def digest_row(self, code: bytes) -> str:
        """Return the digest of an arch's values (see `raynas.space.values`) from its row of codes."""
        order, written = self._written
        return digest_written(map(getitem, written, order(memoryview(code).cast("h"))))

    @cached_property
    def _written(self) -> tuple[Callable[[Sequence[int]], Sequence[int]], list[list[bytes]]]:
        """The order of the dimensions by name, and each one's choices as a digest reads them; the last is INACTIVE."""
        order = sorted(range(len(self.dimensions)), key=lambda index: self.dimensions[index].name)
        dimensions = [self.dimensions[index] for index in order]
        written = [[*(as_digested(d.name, choice) for choice in d.choices), b""] for d in dimensions]
        return itemgetter(*order) if len(order) > 1 else tuple, written

    @cached_property
    def drops_blocks(self) -> bool:
        """True if blocks can be dropped one by one, so that several archs may be one network."""
        return any(dimension.template.endswith("blocks.*.kept") for dimension in self.dimensions)

    # -- sampling and variation ------------------------------------------------------------------------------------

    def sample(self, rng: np.random.Generator, uniform_over: Uniform = "dimensions") -> Arch:
        """Draw one random arch by a generator, such as `np.random.default_rng(0)`; see `sample_codes`."""
        return self.decode(self.sample_codes(rng, 1, uniform_over))[0]

    def widest(self, share: float) -> Space:
        """Return the space of the most expensive choices: of m choices the last 1 + floor(share (m - 1)).

        A share of 0 gives the largest arch, 1 the whole space. `kept` counts as four choices, two of which keep the
        block, so that blocks are dropped from a share of two thirds on (ViT-ResNAS's release).
        """
        dimensions = []
        for dimension in self.dimensions:
            copies = 2 if dimension.name.endswith("kept") else 1
            steps = copies * len(dimension.choices) - 1
            # Shares are ratios of epochs: 1e-9 keeps a float just below a whole step from losing it.
            count = 1 + int(min(max(share, 0.0), 1.0) * steps + 1e-9)
            dimensions.append(replace(dimension, choices=dimension.choices[-math.ceil(count / copies) :]))
        return replace(self, dimensions=tuple(dimensions))

    def mutate(self, arch: Arch, rng: np.random.Generator, probability: Probability = 0.1) -> Arch:
        """Return one mutated arch; see `mutate_codes`."""
        return self.decode(self.mutate_codes(self.encode([arch]), rng, probability))[0]

    def crossover(
        self, first: Arch, second: Arch, rng: np.random.Generator, by: Literal["gene", "block"] = "gene"
    ) -> Arch:
        """Return one child of two archs; see `crossover_codes`."""
        return self.decode(self.crossover_codes(self.encode([first]), self.encode([second]), rng, by))[0]

    def neighbours(self, arch: Arch) -> list[Arch]:
        """Return every arch one step away in one dimension; added blocks take their smallest choices."""
        fill = {dimension.name: dimension.choices[0] for dimension in self.dimensions}
        arch, found = self.arch(arch), []
        for name, value in arch.items():
            choices = self[name].choices
            position = choices.index(value)
            for step in (position - 1, position + 1):
                if 0 <= step < len(choices):
                    found.append(self.arch({**fill, **arch, name: choices[step]}))
        return found


def check_space(space: object) -> None:
    """Refuse what is no space, such as the name of one."""
    if not isinstance(space, Space):
        raise UserError(f"give a space, such as raynas.load_space('digits/vit'), not {shown(space)}")
