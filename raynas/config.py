"""Configurations: a base class of validated values, with errors that name file, line and nearest right key."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_origin

import pydantic
from pydantic_core import to_jsonable_python

from raynas.documents import Document, Location
from raynas.errors import ConfigError, together
from raynas.locations import NO_CREDENTIALS
from raynas.text import named, nearest, shown

ConfigT = TypeVar("ConfigT", bound="Config")
SeedsT = TypeVar("SeedsT", bound=Sequence[int])

MOST_SEEDS = 1000
"""The most seeds of one network's training, far more than a result needs."""


def _different(seeds: SeedsT) -> SeedsT:
    if len(set(seeds)) < len(seeds):
        raise ValueError("the same seed twice would be the same training twice")
    return seeds


Natural = Annotated[int, pydantic.Field(ge=0, le=10**7, description="a whole number from 0")]
Positive = Annotated[int, pydantic.Field(ge=1, le=10**7, description="a whole number from 1")]
Seed = Annotated[int, pydantic.Field(ge=0, lt=2**63, description="a whole number from 0 that the tables can hold")]
Different = pydantic.AfterValidator(_different)
Seeds = Annotated[
    Sequence[Seed],
    Different,
    pydantic.Field(min_length=1, max_length=MOST_SEEDS, description="a list of different whole numbers from 0"),
]
Name = Annotated[str, pydantic.Field(pattern=r"^[\w-]+$", description="a name of letters, digits, - and _")]
"""Numbers and names that users give, with their bounds."""

_SHAPES = {
    "dict_type": "expected a mapping ({{}} for an empty one)",
    "model_type": "expected a mapping",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "too_long": "expected at most {max_length} items",
    "too_short": "expected at least {min_length} item(s)",
}
"""pydantic's errors about Python types, in the words of YAML."""


class Config(pydantic.BaseModel):
    """Base of all configuration models: immutable; unknown keys, NaN and bools as numbers are errors."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)

    if not TYPE_CHECKING:  # which take the fields for the signature
        # With the attributes of pydantic's own, it is not called for a configuration in another one.
        @functools.wraps(pydantic.BaseModel.__init__, assigned=())
        def __init__(self, /, **values: Any):
            """Build it from values by name, as Python callers do.

            Raises:
                ConfigError: a value is wrong.
            """
            try:
                super().__init__(**values)
            except pydantic.ValidationError as error:
                raise _errors(type(self), error, Document(values, type(self).__name__), ()) from error

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _booleans_are_not_numbers(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """Reject true and false where a number is expected: pydantic would read `classes: true` as 1."""
        allowed = _types_in(cls.model_fields[info.field_name].annotation) if info.field_name else [Any]
        # Nested models check their own values.
        mapping = any(get_origin(kind) is dict and not _models_in(kind) for kind in allowed)
        fits = any(kind in (bool, Any, object) or isinstance(kind, bool) for kind in allowed)
        if not fits and holds_boolean(value, mapping):
            raise ValueError("true and false are not numbers")
        return value


def added_field(default: Any, **rules: Any) -> Any:
    """Return a field that was added after settings were recorded, which is written only if it is not the default.

    Settings recorded before, and fingerprints, stay equal to those of now.

    Args:
        default: the default, under which everything is as it was before.
        rules: further arguments of pydantic's `Field`.
    """
    return pydantic.Field(default, exclude_if=lambda value: value == default, **rules)


def spelled_out(values: Any, settings: Any) -> Any:
    """Return recorded settings with the defaults that are left out of them; see `added_field`.

    Args:
        values: the settings as plain values.
        settings: a configuration of the same kind, or a mapping with some; its fields say what may be left out.
    """
    if not isinstance(values, dict):
        return values
    if isinstance(settings, pydantic.BaseModel):
        fields = type(settings).model_fields
        added = {name: to_jsonable_python(field.default) for name, field in fields.items() if field.exclude_if}
        values, settings = values | {name: added[name] for name in added.keys() - values.keys()}, dict(settings)
    if not isinstance(settings, Mapping):
        return values
    return {name: spelled_out(value, settings.get(name)) for name, value in values.items()}


def validate(model: type[ConfigT], document: Document, location: Location = ()) -> ConfigT:
    """Validate the part of a document at `location` against a model.

    Raises:
        ConfigError: with file, line, key and what is wrong, for all wrong values; a wrong key names the nearest right
            one.
    """
    data = document.part(location).data
    if not isinstance(data, dict):
        raise document.error(location, f"expected a mapping, found {named(data)}")
    for key in data:
        if not isinstance(key, str):
            raise document.error(location, f"the key {shown(key)} is not text")
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise _errors(model, error, document, location) from error


def _errors(
    model: type[Config], error: pydantic.ValidationError, document: Document, location: Location
) -> ConfigError:
    """Return the error about all wrong values of a model."""
    # An unknown key explains a "field required" beside it (a typo causes both), so that these are left out. A value of
    # several types has an error for each of them, of which one is enough.
    found: dict[Location, ConfigError] = {}
    data, mistyped = document.part(location).data, set[Location]()
    for each in sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden"):
        place = each["loc"]
        if each["type"] in ("missing", "extra_forbidden"):
            around = _in_data(data, place[:-1])
            if each["type"] == "missing" and around in mistyped:
                continue
            mistyped |= {around} if each["type"] == "extra_forbidden" else set()
            place = (*around, place[-1])
        else:
            place = _in_data(data, place)
        if not any(place[: len(known)] == known or known[: len(place)] == place for known in found):
            found[place] = _error(model, each, document, location)
    return together(list(found.values()))


def _error(model: type[Config], found: Any, document: Document, location: Location) -> ConfigError:
    """Return the error about one wrong value, of which pydantic says what is wrong."""
    place = found["loc"]
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError) and cause.location:  # from a document inside this one
        inner = [each for each in (cause, *cause.others) if isinstance(each, ConfigError)]
        return together([document.error((*location, *place, *each.location), each.problem) for each in inner])
    if found["type"] == "extra_forbidden":
        known = _known_keys(model, place[:-1])
        key = str(place[-1])
        message = f"unknown key {shown(place[-1])}{nearest(key, known)}"
        if key.partition(":")[0] in known:
            message = f"{shown(place[-1])}: write a space after the colon"
        return document.error((*location, *place[:-1], key), message)
    if found["type"] == "missing":
        return document.error((*location, *place), "is missing")
    place = _in_data(document.part(location).data, place)
    message = found["msg"].removeprefix("Value error, ")
    if found["type"] in _SHAPES:
        message = _SHAPES[found["type"]].format(**found.get("ctx", {}))
    if "input" in found and not isinstance(found["input"], dict) and NO_CREDENTIALS not in message:
        message += f", found {'nothing' if found['input'] is None else shown(found['input'])}"
    return document.error((*location, *place), message)


def _in_data(data: Any, place: Location) -> Location:
    """Return the part of a place that exists in the data: pydantic adds the tags of unions to its locations."""
    for index, part in enumerate(place):
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            return place[:index]
    return place


def _known_keys(model: type[Config], path: Location) -> list[str]:
    """Return the field names of the model at a location, through unions and lists."""
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
    # Python 3.10 calls list[int] a type, too.
    classes = [kind for kind in _types_in(annotation) if isinstance(kind, type) and get_origin(kind) is None]
    return [kind for kind in classes if issubclass(kind, pydantic.BaseModel)]


def holds_boolean(value: Any, mapping: bool) -> bool:
    """Return True if a value is or contains a bool, in lists at any depth and, if `mapping`, in mappings' values."""
    items: Any = value if isinstance(value, list | tuple) else ()
    if mapping and isinstance(value, dict):
        items = value.values()
    return isinstance(value, bool) or any(holds_boolean(item, mapping) for item in items)


def _types_in(annotation: Any) -> list[Any]:
    """Return an annotation and its parts: for `list[int] | None` itself, `list[int]`, `int` and `None`."""
    return [annotation, *(kind for part in getattr(annotation, "__args__", ()) for kind in _types_in(part))]
