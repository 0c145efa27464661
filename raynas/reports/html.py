"""The parts of a page, and the page itself: no scripts, nothing loaded from elsewhere, light and dark.

Sections are made of values: plain text, tables, figures. The template `page.html` alone turns them into HTML, and
escapes whatever is not a figure's SVG.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

MAX_ROWS = 500
"""A table longer than this is cut on the page; the whole of it is in the run directory."""


class Percent(float):
    """A fraction that tables write as a percentage with two decimals."""


class Note(str):
    """A paragraph in smaller, quieter letters."""


@dataclass(frozen=True)
class Table:
    """A table; columns of numbers stand right.

    Attributes:
        name: its id on the page.
        header: the names of the columns.
        rows: their cells: text, numbers, None for a dash.
    """

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers alone."""
        return [
            bool(self.rows) and all(isinstance(row[place], int | float | None) for row in self.rows)
            for place in range(len(self.header))
        ]


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, and the table behind it folded away.

    Attributes:
        svg: see `raynas.reports.figures.svg`.
        caption: what is to be seen.
        table: the numbers that are drawn.
        summary: what the folded table is called.
    """

    svg: Markup
    caption: str
    table: Table | None = None
    summary: str = "The numbers as a table"


@dataclass(frozen=True)
class Code:
    """Text in a fixed-width font, lines kept; folded away under a summary where it has one."""

    text: str
    summary: str = ""


Part = str | Note | Table | Picture | Code | None


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it: paragraphs as plain text, and the other parts; None is left out."""

    heading: str
    parts: Sequence[Part]


def render(title: str, lead: str, sections: Sequence[Section | None]) -> str:
    """A whole page."""
    template = _environment().get_template("page.html")
    return template.render(title=title, lead=lead, sections=[each for each in sections if each is not None])


def _environment() -> Environment:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=PackageLoader("raynas.reports", "."),
    )
    environment.filters |= {"kind": lambda part: type(part).__name__, "cell": _cell}
    environment.globals["max_rows"] = MAX_ROWS
    return environment


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Percent):
        return f"{float(value):.2%}"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)
