"""YAML documents that know the line of every key and item, and dotted changes to them from a command line."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from raynas.errors import ConfigError, UserError
from raynas.locations import NO_CREDENTIALS, holds_credentials
from raynas.text import is_text, one_line, shown

Location = tuple[str | int, ...]

MAX_FILE_BYTES = 2**17
"""The largest configuration file: far more than needed, and read within seconds."""

MAX_DEPTH = 40
MAX_YAML_NODES = 100_000
MOST_DIGITS = 400
"""Limits far above any need; aliases could otherwise blow a short file up without end."""


@dataclass(eq=False, repr=False)
class Document:
    """A parsed YAML document that remembers the line of every key and item.

    Attributes:
        source: its name in messages.
        lines: by location.
        inside: its place in another document, which then names file and line of mistakes in it.
        changed: places whose values came from elsewhere, such as the command line.
    """

    data: Any
    source: str = "<value>"
    lines: dict[Location, int] = field(default_factory=dict)
    inside: Location = ()
    changed: Sequence[Location] = ()

    def error(self, location: Sequence[str | int], message: str) -> ConfigError:
        """Return the error for a place in this document, on one line: `file:line: a.b: message`."""
        location = tuple(location)
        if self.inside:
            path = ".".join(one_line(str(part)) for part in (*self.inside, *location))
            return ConfigError(f"{path}: {one_line(message)}", (*self.inside, *location), message)
        line = next(
            (self.lines[location[:n]] for n in range(len(location), -1, -1) if location[:n] in self.lines), None
        )
        where = self.source if line is None else f"{self.source}:{line}"
        if below := [place for place in self.changed if place[: len(location)] == location != place]:
            where += f" of {', '.join('.'.join(map(str, place)) for place in below[:3])}"
        path = ".".join(one_line(str(part)) for part in location)
        return ConfigError(": ".join(part for part in (where, path, one_line(message)) if part))

    def part(self, location: Location) -> Document:
        """Return the document below a place, with locations relative to it."""
        data = self.data
        for step in location:
            data = data[step]
        depth = len(location)
        lines = {place[depth:]: line for place, line in self.lines.items() if place[:depth] == location}
        return Document(data, self.source, lines)


def read_yaml(path: str | Path) -> Document:
    """Read one YAML file.

    Raises:
        ConfigError: the file is missing, unreadable, far too large, not YAML, or holds credentials in a URI.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes: not a configuration file")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    document = parse_yaml(text, str(path))
    for place, value in _texts(document.data):
        if holds_credentials(value):
            raise document.error(place, NO_CREDENTIALS)
    return document


def _texts(value: Any, place: Location = ()) -> Iterator[tuple[Location, str]]:
    """Yield every text of plain values with its place; a key has the place of its mapping."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place, str(key)
            yield from _texts(inner, (*place, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def parse_yaml(text: str, source: str) -> Document:
    """Parse YAML text; `source` names it in errors.

    Raises:
        ConfigError: it is not YAML, a key is given twice or is not text, or it refers to itself.
    """
    try:
        data, lines = _parsed(text)
    except _Mistake as error:
        raise ConfigError(f"{source}:{error.line}: {error.message}") from None
    except RecursionError as error:
        raise ConfigError(f"{source}: nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        reason = one_line(str(getattr(error, "problem", None) or error))
        raise ConfigError(f"{where}: not valid YAML: {reason}") from error
    return Document(copy.deepcopy(data), source, lines)


@lru_cache(maxsize=64)  # the same few files are read dozens of times, which takes 10 ms and more for a preset
def _parsed(text: str) -> tuple[Any, dict[Location, int]]:
    """Return a document's values and lines, which are not to be changed."""
    reading, loader = _Lines(), _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        reading.collect(node, (), ())
        return loader.construct_document(node), reading.lines
    finally:
        loader.dispose()


def parse_overrides(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse assignments of a command line such as `["recipe.epochs=3", ...]`; values are YAML.

    Raises:
        UserError: an assignment has no `=`, two contradict each other (see `check_overrides`), or a value is not YAML.
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"{assignment!r} is not KEY=VALUE, such as recipe.epochs=3")
        if key.strip() in found:
            raise UserError(f"{key.strip()} is given twice: give it once")
        found[key.strip()] = parse_yaml(value, shown(assignment)).data
    check_overrides(found)
    return found


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Refuse changes by dotted key of which a later one would undo an earlier one, or give the same value again.

    Below a mapping further values may be given: `plan.sampler` with a name, then `plan.sampler.random`.

    Raises:
        UserError: there are two such; the message names both.
    """
    places = {tuple(key.split(".")): value for key, value in overrides.items()}
    for index, (later, value) in enumerate(places.items()):
        for earlier, around in list(places.items())[:index]:
            outer, inner = sorted((earlier, later), key=len)
            if inner[: len(outer)] != outer:
                continue
            both = f"{'.'.join(earlier)} and {'.'.join(later)} are both given"
            if len(later) < len(earlier):
                raise UserError(f"{both}, and the second would undo the first: leave one out, or give the second first")
            for key in later[len(earlier) :]:
                if not isinstance(around, Mapping):
                    raise UserError(f"{both}, and the second would undo the first: leave one out")
                if key not in around:
                    break
                around = around[key]
            else:
                if not (isinstance(around, Mapping) and isinstance(value, Mapping)):
                    raise UserError(f"{both}, and the first has a value for the second, too: leave one out")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with file and line in errors about bad dates and numbers too."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > MOST_DIGITS:  # Python reads no more than 4,300
            raise _problem(node, f"{shown(node.value)} is too large for a whole number; write it as 1.0e+30 is written")
        try:
            value = super().construct_object(node, deep)  # type: ignore[no-untyped-call]
        except (yaml.YAMLError, RecursionError):
            raise
        except Exception as error:
            raise _problem(node, f"{shown(node.value)} is no {node.tag.rpartition(':')[2]}: {error}") from error
        if type(value) is int and abs(value) >= 2**63:
            raise _problem(node, f"{shown(node.value)} is too large for a whole number; write it as 1.0e+30 is written")
        if isinstance(value, float) and not math.isfinite(value):
            raise _problem(node, f"{shown(node.value)} is not a finite number")
        return value


def _problem(node: yaml.Node, message: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, message, node.start_mark)


def write_yaml(path: str | Path, data: Any) -> None:
    """Write plain values (mappings, lists, numbers, text) as YAML for people to read, keys in their order."""
    Path(path).write_text(yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=120), encoding="utf-8")


class _Mistake(Exception):
    """A mistake in valid YAML, such as a key that is given twice, with its line."""

    def __init__(self, line: int, message: str):
        self.line, self.message = line, message


class _Lines:
    """The line of each value of a document; keys that are given twice and the like are refused."""

    def __init__(self) -> None:
        self.lines: dict[Location, int] = {}
        self._values = 0

    def collect(self, node: yaml.Node, location: Location, above: tuple[yaml.Node, ...]) -> None:
        line = node.start_mark.line + 1
        self.lines.setdefault(location, line)
        self._values += 1
        if self._values > MAX_YAML_NODES:
            raise _Mistake(line, f"more than {MAX_YAML_NODES} values")
        if len(above) > MAX_DEPTH:
            raise _Mistake(line, f"nested too deeply: more than {MAX_DEPTH} levels")
        if any(node is one for one in above):
            raise _Mistake(line, "an alias refers to what it stands in")
        above = (*above, node)
        if isinstance(node, yaml.MappingNode):
            self._mapping(node, location, above)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                self.collect(value, (*location, index), above)
        else:
            self._check_text(node)

    def _mapping(self, node: yaml.MappingNode, location: Location, above: tuple[yaml.Node, ...]) -> None:
        seen: set[str] = set()
        merged: list[yaml.Node] = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                kind = "list" if isinstance(key, yaml.SequenceNode) else "mapping"
                raise _Mistake(line, f"a key is a {kind}, not text: give a name")
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise _Mistake(line, f"the key {shown(key.value)} is not text; put it in quotes")
            self._check_text(key)
            name = str(key.value)
            if name in seen:  # YAML would silently keep the last one
                raise _Mistake(line, f"{shown(name)} is given twice")
            seen.add(name)
            if key.tag == "tag:yaml.org,2002:merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                continue
            here: Location = (*location, name)
            self.lines[here] = line
            self.collect(value, here, above)
        for value in merged:  # last, since the mapping's own keys take precedence
            self.collect(value, location, above)

    def _check_text(self, node: yaml.Node) -> None:
        if not is_text(node.value):
            raise _Mistake(node.start_mark.line + 1, f"{shown(node.value)} holds a character that no name can have")
