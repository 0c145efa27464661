"""The pieces of a self-contained HTML page: no scripts, nothing loaded from elsewhere, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

MAX_ROWS = 500
"""A table longer than this is cut on the page; the whole of it is in the run directory."""


class Percent(float):
    """A fraction that tables write as a percentage with two decimals."""


_CSS = """
:root { color-scheme: light dark; --ink: #1c2329; --quiet: #5b6770; --paper: #fff; --line: #d6dce1; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8eb; --quiet: #9aa7b1; --paper: #14181b; --line: #333c43; --soft: #1d2327; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
  max-width: 56rem; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
.lead { font-size: 1.05rem; }
.quiet, figcaption { color: var(--quiet); font-size: .9rem; }
figure { margin: 1rem 0; }
figure svg { max-width: 100%; height: auto; }
figure svg text { font-family: system-ui, sans-serif !important; }
.scroll { overflow: auto; max-height: 28rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; margin: .6rem 0; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; }
thead th { position: sticky; top: 0; background: var(--paper); }
details { margin: .4rem 0 1rem; }
summary { cursor: pointer; color: var(--quiet); font-size: .9rem; }
code, pre { font: .86rem/1.45 ui-monospace, monospace; background: var(--soft); }
pre { padding: .7rem; overflow: auto; border-radius: .3rem; }
code { padding: .1rem .3rem; border-radius: .2rem; overflow-wrap: anywhere; }
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """A whole page; `lead` is plain text, the sections are HTML."""
    body = "\n".join(section for section in sections if section)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>{_CSS}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        f'<p class="lead">{escape(lead)}</p>\n{body}\n</main>\n</body>\n</html>\n'
    )


def section(heading: str, *parts: str) -> str:
    """A section under a heading of plain text."""
    return f"<section>\n<h2>{escape(heading)}</h2>\n" + "\n".join(part for part in parts if part) + "\n</section>"


def paragraph(text: str, quiet: bool = False) -> str:
    """A paragraph of plain text."""
    return f"<p{' class=quiet' if quiet else ''}>{escape(text)}</p>"


def figure(svg: str, description: str, caption: str, table: str = "", summary: str = "The numbers as a table") -> str:
    """A figure with its description for those who cannot see it, and the table behind it folded away."""
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)
    details = f"\n<details><summary>{escape(summary)}</summary>\n{table}\n</details>" if table else ""
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>{details}"


def table(name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table; `name` becomes its id. Numbers stand right, None is a dash, text is escaped."""
    right = [bool(rows) and all(isinstance(row[i], int | float | None) for row in rows) for i in range(len(header))]
    head = "".join(
        f'<th scope="col"{_number(r)}>{escape(str(cell))}</th>' for cell, r in zip(header, right, strict=True)
    )
    lines = []
    for row in rows[:MAX_ROWS]:
        cells = zip(row, right, strict=True)
        lines.append(
            "<tr>" + "".join(f"<td{_number(number)}>{escape(_text(cell))}</td>" for cell, number in cells) + "</tr>"
        )
    body = "\n".join(lines)
    hidden = len(rows) - MAX_ROWS
    more = paragraph(f"{hidden:,} more rows are in the run directory.", quiet=True) if hidden > 0 else ""
    return (
        f'<div class="scroll"><table id="{escape(name)}">\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table></div>{more}"
    )


def preformatted(text: str) -> str:
    """Text in a fixed-width font, lines kept."""
    return f"<pre>{escape(text)}</pre>"


def _number(right: bool) -> str:
    return ' class="number"' if right else ""


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, Percent):
        return f"{float(cell):.2%}"
    if isinstance(cell, float):
        return f"{cell:.4f}" if abs(cell) < 100 else f"{cell:,.1f}"
    return str(cell)
