"""Configuration files: YAML in, validated values out, errors that name file, line and nearest right key."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pydantic
import yaml

from raynas.errors import ConfigError

Location = tuple[str | int, ...]
ConfigT = TypeVar("ConfigT", bound="Config")


class Config(pydantic.BaseModel):
    """Base of every configuration model: immutable, and unknown keys are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Document:
    """A parsed YAML document that remembers the line of every key and item."""

    def __init__(self, data: Any, source: str = "<value>", lines: dict[Location, int] | None = None):
        self.data = data
        self.source = source
        self.lines = lines or {}

    def error(self, location: Sequence[str | int], message: str) -> ConfigError:
        """The error for a place in this document: `file:line: a.b: message`."""
        location = tuple(location)
        line = next((self.lines[location[:n]] for n in range(len(location), -1, -1) if location[:n] in self.lines), None)
        where = self.source if line is None else f"{self.source}:{line}"
        path = ".".join(str(part) for part in location)
        return ConfigError(f"{where}: {path}: {message}" if path else f"{where}: {message}")


def read_yaml(path: str | Path) -> Document:
    """Read one YAML file.

    Raises:
        ConfigError: the file is missing, unreadable, or not YAML.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Document:
    """Parse YAML text; `source` names it in errors."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        lines: dict[Location, int] = {}
        if node is not None:
            _collect_lines(node, (), lines, source)
        data = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = source if mark is None else f"{source}:{mark.line + 1}"
        raise ConfigError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
    finally:
        loader.dispose()
    return Document(data, source, lines)


def _collect_lines(node: yaml.Node, location: Location, lines: dict[Location, int], source: str) -> None:
    lines.setdefault(location, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in seen:  # YAML would keep the last one in silence
                raise ConfigError(f"{source}:{line}: {name!r} is given twice")
            seen.add(name)
            lines[(*location, name)] = line
            _collect_lines(value, (*location, name), lines, source)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _collect_lines(value, (*location, index), lines, source)


def nearest(name: str, known: Sequence[str]) -> str:
    """`" (did you mean 'x'?)"`, or the list of what is known."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(known)})"


def validate(model: type[ConfigT], document: Document, location: Location = ()) -> ConfigT:
    """Validate the part of a document at `location` against a model.

    Raises:
        ConfigError: with file, line, key and what is wrong; a wrong key names the nearest right one.
    """
    data = document.data
    for part in location:
        data = data[part]
    if not isinstance(data, dict):
        raise document.error(location, f"expected a mapping, found {type(data).__name__}")
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise _first_error(model, error, document, location) from error


def _first_error(
    model: type[Config], error: pydantic.ValidationError, document: Document, location: Location
) -> ConfigError:
    # An unknown key explains a "field required" beside it (a typo makes both), so it is told first.
    first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
    place = first["loc"]
    if first["type"] == "extra_forbidden":
        known = _known_keys(model, place[:-1])
        message = f"unknown key {place[-1]!r}{nearest(str(place[-1]), known)}"
        return document.error((*location, *place), message)
    message = first["msg"].removeprefix("Value error, ")
    if "input" in first and not isinstance(first["input"], dict):
        message += f", found {first['input']!r}"
    return document.error((*location, *place), message)


def _known_keys(model: type[Config], path: Location) -> list[str]:
    """Field names of the model that a location points into (unions and lists are looked through)."""
    candidates: list[Any] = [model]
    for part in path:
        inner: list[Any] = []
        for candidate in candidates:
            fields = getattr(candidate, "model_fields", {})
            if part in fields:
                inner += _models_in(fields[part].annotation)
            else:  # a list index, a mapping key, or the tag of a union: stay where we are
                inner.append(candidate)
        candidates = inner or candidates
    return sorted({name for candidate in candidates for name in getattr(candidate, "model_fields", {})})


def _models_in(annotation: Any) -> list[Any]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def load_object(reference: str, known: Mapping[str, Any], what: str) -> Any:
    """A part by name: one of ours, or the user's own as `module:object`.

    Raises:
        ConfigError: the name is neither, or the module or object cannot be imported.
    """
    if reference in known:
        return known[reference]
    module, colon, name = reference.partition(":")
    if not colon:
        raise ConfigError(f"unknown {what} {reference!r}{nearest(reference, sorted(known))}; your own: 'module:object'")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{what} {reference!r} cannot be imported: {error}") from error
