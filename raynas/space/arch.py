"""An architecture: the values of a space's active dimensions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raynas.space.dimension import Choice
from raynas.space.families import family_of

if TYPE_CHECKING:
    from raynas.space.space import Space


class Arch(Mapping[str, Choice]):
    """A frozen, hashable, canonical mapping of dimension names to values; made by `Space.arch` and similar methods.

    It holds active genes only (a block beyond the depth has none), so archs that use the same weights are equal.
    """

    def __init__(self, space: Space, values: Mapping[str, Choice]):
        self.space = space
        self._values = dict(values)

    @classmethod
    def _unpickle(cls, space: Space, codes: bytes) -> Arch:
        return space.decode(np.frombuffer(codes, dtype=np.int16)[None])[0]

    def __reduce__(self) -> tuple[Any, ...]:
        # Keeps a pickled list of archs small: the space once, then two bytes a gene.
        return Arch._unpickle, (self.space, self.space.encode([self]).tobytes())

    def __getitem__(self, name: str) -> Choice:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    @cached_property
    def _hash(self) -> int:
        return hash(frozenset(self._values.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self._values == other._values if isinstance(other, Arch) else NotImplemented

    def __repr__(self) -> str:
        return f"Arch({self.id}: {json.dumps(self.to_dict())})"

    @cached_property
    def id(self) -> str:
        """Twelve hex digits, the hash of names and values: the same in every process, space file and version."""
        return _digest(self._values)

    @cached_property
    def network_id(self) -> str:
        """The id of the network that this arch computes, shared by archs that differ only in inherited weights.

        If any block can be dropped, archs that keep equal blocks in the same order are the same network: they share
        this id, but not `id`. So do archs that differ only in windows larger than their grid.
        """
        acting = family_of(self.space.family).acting
        kept: dict[str, int] = {}
        values: dict[str, Choice] = {}
        for name, value in (self if acting is None else acting(self)).items():
            prefix, _, rest = name.rpartition("blocks.")
            index, _, leaf = rest.partition(".")
            if not leaf or f"{prefix}blocks.{index}.kept" not in self._values:
                values[name] = value
            elif leaf == "kept":  # precedes the block's other genes; blocks are in order
                kept[prefix] = kept.get(prefix, 0) + bool(value)
            else:
                values[f"{prefix}blocks.{kept[prefix] - 1}.{leaf}"] = value
        values.update({f"{prefix}depth": count for prefix, count in kept.items()})
        return _digest(values)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values; per-block values are lists over blocks: `{"blocks": {"heads": [3, 4]}}`."""
        tree: dict[str, Any] = {}
        for name, value in self._values.items():
            node, parts = tree, name.split(".")
            blocks = parts.index("blocks") if "blocks" in parts else None
            keys = parts[:-1] if blocks is None else parts[: blocks + 1]
            for key in keys:
                node = node.setdefault(key, {})
            if blocks is None:
                node[parts[-1]] = value
            else:
                column = node.setdefault(".".join(parts[blocks + 2 :]), [])
                column += [None] * (int(parts[blocks + 1]) - len(column))  # dropped blocks in between
                column.append(value)
        return _lists(tree)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested values or dotted names to a mapping of dimension names; the inverse of `Arch.to_dict`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        elif isinstance(value, list | tuple) and value and all(isinstance(item, Mapping) for item in value):
            for index, item in enumerate(value):
                flat.update(flatten(item, f"{name}.{index}."))
        elif isinstance(value, list | tuple) and (prefix == "blocks." or prefix.endswith(".blocks.")):
            flat.update({f"{prefix}{index}.{key}": item for index, item in enumerate(value) if item is not None})
        else:
            flat[name] = value
    return flat


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    tree = {key: _lists(value) for key, value in tree.items()}
    if tree and all(key.isdigit() for key in tree):
        return [tree.get(str(index), {}) for index in range(1 + max(map(int, tree)))]
    return tree


def _digest(values: Mapping[str, Choice]) -> str:
    canonical = json.dumps(dict(sorted(values.items())), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]
