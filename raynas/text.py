"""Values as people read them: durations, and what error messages show of a user's input."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Sequence
from typing import Any

from raynas.locations import hide_secrets

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict = 3, 8, 8, 4
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60

_YAML_NAMES = {dict: "a mapping", list: "a list", str: "text", type(None): "nothing", bool: "true or false"}


def duration(seconds: float) -> str:
    """Return a duration in words: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds: `7,200 s`, `64 s`, `3.1 s`."""
    return f"{seconds:,.0f} s" if seconds >= 9.95 else f"{seconds:.1f} s"


def energy_text(joules: float) -> str:
    """Return an energy in words: `812 J`, `3.1 kJ`, `45 MJ`."""
    for unit, size in (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3)):
        if joules >= 0.9995 * size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules:.3g} J"


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of text: columns as wide as their longest cell; rows may be shorter than others."""
    count = max(map(len, rows), default=0)
    widths = [max(len(row[place]) for row in rows if place < len(row)) for place in range(count)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]


def is_text(value: str) -> bool:
    """Return True if text can be written to a file and name one: no NUL, and all of it UTF-8."""
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)


def shown(value: Any) -> str:
    """Return a value for an error message: its repr on one line, shortened, without credentials."""
    if isinstance(value, str) and (hidden := hide_secrets(value)) != value:  # before it is shortened
        return one_line(repr(hidden))
    return one_line(hide_secrets(_REPR.repr(value)))


def named(value: Any) -> str:
    """Return the kind of a YAML value in words."""
    return _YAML_NAMES.get(type(value)) or f"{type(value).__name__} {shown(value)}"


def one_line(text: str, longest: int = 600) -> str:
    """Return text on one line, without control characters, cut after `longest` characters."""
    text = " ".join(text.split())
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= longest else text[: longest - 3] + "..."


def nearest(name: str, known: Sequence[str], hint: str | None = None) -> str:
    """Return `" (did you mean 'x'?)"`, or a hint in brackets: by default the list of known names."""
    close = difflib.get_close_matches(name[:100], known, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    listed = ", ".join([*known[:20], "..."] if len(known) > 20 else known)
    return f" ({hint or f'known: {listed}'})"
