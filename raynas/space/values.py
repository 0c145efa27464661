"""Values of an arch as plain data: flat by dimension name, or nested as in files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from raynas.space.dimension import Choice


def nest(values: Mapping[str, Choice]) -> dict[str, Any]:
    """Return nested plain values; per-block values are lists over blocks: `{"blocks": {"heads": [3, 4]}}`."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
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
    """Flatten nested values or dotted names to a mapping of dimension names; the inverse of `nest`."""
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


def without_dropped(given: Mapping[str, Choice]) -> dict[str, Choice]:
    """Return values of an arch with its blocks numbered as if those that it drops did not exist.

    `kept` is replaced by the number of blocks, `depth`; values without `kept` are returned as they are.
    """
    kept: dict[str, int] = {}
    values: dict[str, Choice] = {}
    for name, value in given.items():
        prefix, _, rest = name.rpartition("blocks.")
        index, _, leaf = rest.partition(".")
        if not leaf or f"{prefix}blocks.{index}.kept" not in given:
            values[name] = value
        elif leaf == "kept":  # precedes the block's other genes; blocks are in order
            kept[prefix] = kept.get(prefix, 0) + bool(value)
        else:
            values[f"{prefix}blocks.{kept[prefix] - 1}.{leaf}"] = value
    values.update({f"{prefix}depth": count for prefix, count in kept.items()})
    return values


def digest(values: Mapping[str, Choice]) -> str:
    """Return twelve hex digits, the hash of names and values."""
    return digest_written(as_digested(name, values[name]) for name in sorted(values))


def as_digested(name: str, value: Choice) -> bytes:
    """Return an item of the JSON that `digest` hashes, with a comma."""
    return f"{json.dumps(name)}:{json.dumps(value)},".encode()


def digest_written(items: Iterable[bytes]) -> str:
    """Return the digest of items from `as_digested`, in the order of their names."""
    return hashlib.sha256(b"{%b}" % b"".join(items)[:-1]).hexdigest()[:12]


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    tree = {key: _lists(value) for key, value in tree.items()}
    if tree and all(key.isdigit() for key in tree):
        return [tree.get(str(index), {}) for index in range(1 + max(map(int, tree)))]
    return tree
