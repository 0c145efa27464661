"""The parts of a page, and the page itself: without scripts and external files, in light and dark mode.

Sections consist of values: plain text, tables, figures. Only the template `page.html` turns them into HTML; it escapes
everything except the SVG of figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from raynas.drawing import svg

MAX_ROWS = 500
"""Maximum number of a table's rows on the page; the whole table is in the run directory."""


class Percent(float):
    """A fraction that tables show as a percentage with two decimals."""


class Note(str):
    """A paragraph in small, muted type."""


@dataclass(frozen=True)
class Table:
    """A table; columns of numbers are aligned right.

    Attributes:
        name: id on the page.
        rows: cells: text, numbers, None for a dash.
    """

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @property
    def numeric(self) -> list[bool]:
        """True for each column that has only numbers."""
        return [
            bool(self.rows) and all(isinstance(row[place], int | float | None) for row in self.rows)
            for place in range(len(self.header))
        ]


@dataclass(frozen=True)
class Picture:
    """A figure with its caption, and a folded table of its numbers.

    Attributes:
        svg: SVG from `raynas.drawing.svg`.
        summary: title of the folded table.
    """

    svg: Markup
    caption: str
    table: Table | None = None
    summary: str = "The numbers as a table"


def drawn(
    figure: Figure,
    name: str,
    description: str,
    caption: str,
    table: Table | None = None,
    summary: str = Picture.summary,
) -> Picture:
    """Return a figure with its caption; `name` and `description` are those of `raynas.drawing.svg`."""
    return Picture(svg(figure, name, description), caption, table, summary)


@dataclass(frozen=True)
class Code:
    """Preformatted text in a fixed-width font; folded if it has a summary."""

    text: str
    summary: str = ""


Part = str | Note | Table | Picture | Code | None


@dataclass(frozen=True)
class Section:
    """A heading and its parts: paragraphs as plain text, and other parts; None is left out."""

    heading: str
    parts: Sequence[Part]


def render(title: str, lead: str, sections: Sequence[Section | None]) -> str:
    """Return a whole page as HTML."""
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
        if 0 < abs(value) < 0.001:  # four decimals would leave one digit or none
            return f"{value:.3g}"
        return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"
    return str(value)
