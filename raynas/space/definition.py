"""The written form of a space, and how its tree of choices becomes a list of dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import Field, field_validator

from raynas.config import Config, Document, Location, nearest
from raynas.space.dimension import Choice, Dimension
from raynas.space.families import FAMILIES
from raynas.space.families.rules import Rule


class InputConfig(Config):
    """The images: `size` in pixels (one number, or [height, width]) and `channels`."""

    size: tuple[int, int]
    channels: int = Field(3, ge=1)

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        return (size, size) if isinstance(size, int) else size

    @field_validator("size")
    @classmethod
    def _positive(cls, size: tuple[int, int]) -> tuple[int, int]:
        if min(size) < 1:
            raise ValueError("must be at least 1 pixel")
        return size


class SpaceConfig(Config):
    """A space file.

    Attributes:
        family: the supernet family, a name of `raynas.space.families.FAMILIES`.
        name: what reports call the space; by default the file's path below `spaces/`.
        input: image size and channels.
        classes: number of classes.
        constants: what is fixed for the whole space, as the family defines it.
        dimensions: the tree of choices: a list is a choice list; `blocks:` holds the choices of every block (a mapping,
            repeated for as many blocks as `depth` allows at most, or `repeat:` says) or one mapping for each block.
    """

    family: str
    name: str | None = None
    input: InputConfig
    classes: int = Field(ge=1)
    constants: dict[str, Any] = {}
    dimensions: dict[str, Any]


def read_dimensions(document: Document, location: Location, family: str) -> tuple[Dimension, ...]:
    """Expand the tree of choices below `location` into dimensions, each checked against the family's rules.

    Raises:
        ConfigError: with file and line: an unknown or missing dimension, or a choice list that is empty, not a list,
            of the wrong type, duplicated, or not in ascending cost.
    """
    tree = document.data
    for part in location:
        tree = tree[part]
    rules = FAMILIES[family].dimensions
    dimensions = []
    for name, place, choices, parent, when in _leaves(tree, (), "", None, document, location):
        template = Dimension(name, ()).template
        rule = rules.get(template) or rules.get(_stage_template(template))
        if rule is None:
            raise document.error(place, f"unknown dimension {template!r}{nearest(template, list(rules))}")
        checked = _check_choices(choices, rule, document, place)
        dimensions.append(Dimension(name, checked, parent, frozenset(when)))
    _check_complete(dimensions, rules, document, location)
    return tuple(dimensions)


def write_dimensions(dimensions: Iterable[Dimension]) -> dict[str, Any]:
    """The tree of choices that `read_dimensions` reads back as exactly these dimensions."""
    tree: dict[str, Any] = {}
    for dimension in dimensions:
        node = tree
        *parts, leaf = dimension.name.split(".")
        for part in parts:
            node = node.setdefault(part, {})
        node[leaf] = list(dimension.choices)
    return _write_node(tree)


def _write_node(tree: Any) -> Any:
    """Turn numbered children into lists, and blocks that are all alike into one mapping."""
    if not isinstance(tree, dict):
        return tree
    node = {key: _write_node(value) for key, value in tree.items()}
    if node and all(key.isdigit() for key in node):
        return [node[key] for key in sorted(node, key=int)]
    blocks = node.get("blocks")
    if blocks and all(block == blocks[0] for block in blocks):
        node["blocks"] = blocks[0] if "depth" in node else {"repeat": len(blocks), **blocks[0]}
    return node


def _leaves(
    tree: Any, place: Location, prefix: str, parent: tuple[str, set] | None, document: Document, root: Location
) -> Iterator[tuple[str, Location, Any, str | None, set]]:
    """Yield (name, place in the document, choices, parent's name, parent's values) of every dimension, parents first."""
    if not isinstance(tree, dict):
        raise document.error((*root, *place), f"expected a mapping of dimensions, found {tree!r}")
    parent_name, when = parent or (None, set())
    if "kept" in tree:
        yield f"{prefix}kept", (*root, *place, "kept"), tree["kept"], parent_name, when
        parent_name, when = f"{prefix}kept", {True}
    for key in sorted(tree, key=lambda key: key == "blocks"):  # a depth stands before the blocks that it switches
        here = (*place, key)
        value = tree[key]
        if key == "kept":
            continue
        if key == "blocks":
            yield from _block_leaves(tree, here, f"{prefix}blocks.", document, root)
        elif isinstance(value, dict):
            yield from _leaves(value, here, f"{prefix}{key}.", (parent_name, when) if parent_name else None, document, root)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                yield from _leaves(item, (*here, index), f"{prefix}{key}.{index}.", None, document, root)
        else:
            yield f"{prefix}{key}", (*root, *here), value, parent_name, when


def _block_leaves(
    tree: dict, place: Location, prefix: str, document: Document, root: Location
) -> Iterator[tuple[str, Location, Any, str | None, set]]:
    blocks, depths = tree["blocks"], tree.get("depth")
    if isinstance(depths, list) and not all(type(depth) is int for depth in depths):
        raise document.error((*root, *place[:-1], "depth"), f"must be a list of whole numbers, found {depths!r}")
    if isinstance(blocks, dict):
        blocks = dict(blocks)
        repeat = blocks.pop("repeat", None) or (max(depths) if depths else None)
        if type(repeat) is not int or repeat < 1:
            raise document.error((*root, *place), "how many blocks? Give `depth` beside `blocks`, or `repeat` in it")
        blocks = [blocks] * repeat
    elif not isinstance(blocks, list):
        raise document.error((*root, *place), "must be a mapping for all blocks, or a list with one mapping a block")
    elif depths and len(blocks) != max(depths):
        raise document.error((*root, *place), f"lists {len(blocks)} blocks, but the largest depth is {max(depths)}")
    shared = isinstance(tree["blocks"], dict)
    depth_name = prefix.removesuffix("blocks.") + "depth"
    for index, block in enumerate(blocks):
        here = place if shared else (*place, index)
        parent = (depth_name, {depth for depth in depths if depth > index}) if depths else None
        yield from _leaves(block, here, f"{prefix}{index}.", parent, document, root)


def _check_choices(choices: Any, rule: Rule, document: Document, place: Location) -> tuple[Choice, ...]:
    if not isinstance(choices, list):
        raise document.error(place, f"must be a list of choices, found {choices!r}; write [{choices}]")
    if not choices:
        raise document.error(place, "the choice list is empty")
    for choice in choices:
        fits = type(choice) is rule.type or (rule.type is float and type(choice) is int)
        if not fits or choice != choice or abs(choice) == float("inf"):
            raise document.error(place, f"choice {choice!r} is not a valid {rule.type.__name__}")
        if choice < rule.minimum or (rule.type is float and choice <= 0):
            raise document.error(place, f"choice {choice!r} is too small")
    values = tuple(rule.type(choice) for choice in choices)
    if len(set(values)) < len(values):
        raise document.error(place, f"choices {list(values)} are not all different")
    if list(values) != sorted(values, reverse=rule.descending):
        order = "descending" if rule.descending else "ascending"
        raise document.error(place, f"choices {list(values)} must be in {order} order (smallest network first)")
    return values


def _check_complete(dimensions: list[Dimension], rules: dict[str, Rule], document: Document, place: Location) -> None:
    found = {dimension.template for dimension in dimensions}
    found |= {_stage_template(template) for template in found}
    for template in rules:
        if template not in found:
            raise document.error(place, f"dimension {template!r} is missing")


def _stage_template(template: str) -> str:
    """`stages.2.width` to `stages.*.width`: rules are written once for all stages."""
    return ".".join("*" if part.isdigit() else part for part in template.split("."))

