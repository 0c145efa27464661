"""The written form of a space, and its conversion to a list of dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import Field, field_validator

from raynas.config import Config
from raynas.documents import Document, Location
from raynas.space.dimension import Choice, Dimension, template_of
from raynas.space.families import family_of
from raynas.space.rules import Rule
from raynas.text import named, nearest, shown

_TYPE_NAMES: dict[type, str] = {int: "a whole number", float: "a number", bool: "true or false"}
MAX_BLOCKS = 256
MAX_CHOICES = 1000
Pixels = Annotated[int, Field(ge=1, le=2**14)]


class InputConfig(Config):
    """The images: `size` in pixels (one number, or [height, width]) and `channels`."""

    size: tuple[Pixels, Pixels]
    channels: int = Field(3, ge=1, le=2**14)

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        if isinstance(size, list | tuple):
            return size
        if type(size) is not int:
            raise ValueError("must be a whole number of pixels, or [height, width]")
        return size, size


class SpaceConfig(Config):
    """A space file.

    Attributes:
        family: the supernet family, a name of `raynas.space.families.FAMILIES`.
        name: the space's name in reports; by default the file's path below `spaces/`.
        input: image size and channels.
        classes: number of classes.
        constants: values fixed for the whole space, as the family defines them.
        dimensions: the tree of choices. A list is a choice list. `blocks:` holds one mapping for all blocks, repeated
            up to the largest `depth` or `repeat:` times, or a list of one mapping for each block.
        published: figures of a one-point space from its paper or release, for information.
    """

    family: str
    name: str | None = None
    input: InputConfig
    classes: int = Field(ge=1, le=2**24)
    constants: dict[str, Any] = Field({})
    dimensions: dict[str, Any]
    published: dict[str, Any] = Field({})


def read_dimensions(document: Document, location: Location, family: str, constants: Any) -> tuple[Dimension, ...]:
    """Expand the tree of choices below `location` into dimensions, each checked against the family's rules.

    Raises:
        ConfigError: with file and line: an unknown or missing dimension, or a choice list that is empty, not a list,
            of the wrong type, duplicated, or not in ascending cost.
    """
    tree = document.part(location).data
    rules = family_of(family).dimensions
    dimensions = []
    for name, place, choices, parent, when in _leaves(tree, location, "", None, document):
        template = template_of(name)
        rule = rule_of(family, name)
        if rule is None and choices == []:
            raise document.error(place, "is an empty list: give one mapping for each")
        if rule is None:
            raise document.error(place, f"unknown dimension {shown(template)}{nearest(template, list(rules))}")
        checked = _check_choices(choices, rule, document, place)
        dimensions.append(Dimension(name, checked, parent, frozenset(when)))
    _check_complete(dimensions, _required_templates(family, constants, dimensions), document, location)
    return tuple(dimensions)


def rule_of(family: str, name: str) -> Rule | None:
    """Return the rule for a dimension of that name, or None if the family has no such dimension."""
    rules, template = family_of(family).dimensions, template_of(name)
    return rules.get(template) or rules.get(_stage_template(template))


def write_dimensions(dimensions: Iterable[Dimension]) -> dict[str, Any]:
    """Return the tree of choices that `read_dimensions` reads back as exactly these dimensions."""
    tree: dict[str, Any] = {}
    for dimension in dimensions:
        node = tree
        *parts, leaf = dimension.name.split(".")
        for part in parts:
            node = node.setdefault(part, {})
        node[leaf] = list(dimension.choices)
    return _write_node(tree)


def _write_node(tree: Any) -> Any:
    """Turn numbered children into lists, and equal blocks into one mapping."""
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
    tree: Any, place: Location, prefix: str, parent: tuple[str, set] | None, document: Document
) -> Iterator[tuple[str, Location, Any, str | None, set]]:
    """Yield (name, place in the document, choices, parent's name, parent's values) of every dimension.

    Parents come before their children.
    """
    if not isinstance(tree, dict):
        raise document.error(place, f"expected a mapping of dimensions, found {named(tree)}")
    for key in tree:
        if not isinstance(key, str) or not key or "." in key:
            raise document.error(
                (*place, str(key)), "not the name of a dimension; write dotted names as nested mappings"
            )
    if "kept" in tree:
        yield f"{prefix}kept", (*place, "kept"), tree["kept"], *(parent or (None, set()))
        parent = (f"{prefix}kept", {True})
    for key in sorted(tree, key=lambda key: key == "blocks"):  # the depth, their parent, comes first
        here = (*place, key)
        value = tree[key]
        if key == "kept":
            continue
        if key == "blocks":
            yield from _block_leaves(tree, here, f"{prefix}blocks.", document)
        elif isinstance(value, dict):
            yield from _leaves(value, here, f"{prefix}{key}.", parent, document)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                yield from _leaves(item, (*here, index), f"{prefix}{key}.{index}.", None, document)
        else:
            yield f"{prefix}{key}", here, value, *(parent or (None, set()))


def _block_leaves(
    tree: dict, place: Location, prefix: str, document: Document
) -> Iterator[tuple[str, Location, Any, str | None, set]]:
    blocks, depths = tree["blocks"], tree.get("depth")
    if depths is not None and (
        not isinstance(depths, list) or not depths or not all(type(depth) is int for depth in depths)
    ):
        raise document.error((*place[:-1], "depth"), f"must be a list of whole numbers, found {shown(depths)}")
    if depths and max(depths) == 0 and blocks != []:
        raise document.error(place, f"depth {shown(depths)} has no blocks: leave `blocks` out, or give a larger depth")
    if blocks == [] and depths is None:
        raise document.error(place, "is an empty list: give one mapping for each block, or depth: [0] for none")
    if isinstance(blocks, dict):
        repeat = blocks.get("repeat", max(depths) if depths else None)
        if type(repeat) is not int or not 1 <= repeat <= MAX_BLOCKS:
            hint = "give a `depth` list beside `blocks`, or `repeat` in it"
            raise document.error(place, f"how many blocks, 1 to {MAX_BLOCKS}? Found {shown(repeat)}; {hint}")
        listed = [{key: value for key, value in blocks.items() if key != "repeat"}] * repeat
        places: list[Location] = [place] * repeat
    elif isinstance(blocks, list):
        listed, places = blocks, [(*place, index) for index in range(len(blocks))]
    else:
        raise document.error(
            place, f"must be a mapping for all blocks, or a list of one for each, found {named(blocks)}"
        )
    if depths and len(listed) != max(depths):
        raise document.error(place, f"lists {len(listed)} blocks, but the largest depth is {max(depths)}")
    depth_name = prefix.removesuffix("blocks.") + "depth"
    for index, (block, here) in enumerate(zip(listed, places, strict=True)):
        parent = (depth_name, {depth for depth in depths if depth > index}) if depths else None
        yield from _leaves(block, here, f"{prefix}{index}.", parent, document)


def _check_choices(choices: Any, rule: Rule, document: Document, place: Location) -> tuple[Choice, ...]:
    if not isinstance(choices, list):
        hint = f"; write [{shown(choices)}]" if isinstance(choices, int | float) else ""
        raise document.error(place, f"must be a list of choices, found {shown(choices)}{hint}")
    if not choices:
        raise document.error(place, "the choice list is empty")
    if len(choices) > MAX_CHOICES:
        raise document.error(place, f"lists {len(choices)} choices; {MAX_CHOICES} is the most")
    for index, choice in enumerate(choices):
        here = (*place, index)
        fits = type(choice) in ((int, float) if rule.type is float else (rule.type,))
        if not fits or choice != choice:  # NaN is not itself
            raise document.error(here, f"choice {shown(choice)} is not {_TYPE_NAMES[rule.type]}")
        if choice < rule.minimum or (rule.type is float and choice <= 0):
            raise document.error(here, f"choice {shown(choice)} is too small")
        if choice > rule.maximum:
            raise document.error(here, f"choice {shown(choice)} is too large (at most {rule.maximum})")
    values = tuple(rule.type(choice) for choice in choices)
    if len(set(values)) < len(values):
        raise document.error(place, f"choices {shown(choices)} are not all different")
    if list(values) != sorted(values, reverse=rule.descending):
        order = "descending" if rule.descending else "ascending"
        raise document.error(place, f"choices {shown(choices)} must be in {order} order (smallest network first)")
    return values


def _required_templates(family: str, constants: Any, dimensions: list[Dimension]) -> list[str]:
    rules, required = family_of(family).dimensions, family_of(family).required
    if required is None:
        return list(rules)
    given = {dimension.template for dimension in dimensions}
    return required(constants, {t if t in rules else _stage_template(t) for t in given})


def _check_complete(dimensions: list[Dimension], required: list[str], document: Document, place: Location) -> None:
    found = {dimension.name: dimension for dimension in dimensions}
    for dimension in dimensions:
        if dimension.template not in required and _stage_template(dimension.template) not in required:
            if dimension.template.endswith("depth") and any(template.endswith(".kept") for template in required):
                raise document.error(place, f"{dimension.name!r}: blocks run by depth or by kept, in all stages alike")
            beside = ", ".join(required)
            raise document.error(place, f"dimension {dimension.template!r} has no use here: this space needs {beside}")
    for template in required:
        for name in _required(template, found):
            if name not in found:
                anywhere = any(_stage_template(dimension.template) == template for dimension in dimensions)
                raise document.error(place, f"dimension {name if anywhere else template!r} is missing")


def _required(template: str, found: dict[str, Dimension]) -> Iterator[str]:
    """Yield the dimension names that a rule's template stands for, given the stages and blocks found."""
    before, star, after = template.partition(".*.")
    if not star:
        yield template
        return
    depth = found.get(f"{before.removesuffix('blocks')}depth")
    indices = {int(name[len(before) + 1 :].split(".")[0]) for name in found if name.startswith(f"{before}.")}
    count = max(depth.choices) if before.endswith("blocks") and depth else max(indices, default=0) + 1
    for index in range(count):
        kept = found.get(f"{before}.{index}.kept")
        if after == "kept" or kept is None or True in kept.choices:  # a block always dropped has no other genes
            yield from _required(f"{before}.{index}.{after}", found)


def _stage_template(template: str) -> str:
    """Replace stage numbers by `*` (`stages.2.width` to `stages.*.width`), since one rule holds for all stages."""
    return ".".join("*" if part.isdigit() else part for part in template.split("."))
