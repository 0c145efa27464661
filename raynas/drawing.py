"""Style of figures, with colours, fonts, axes and legends, and their SVG for a page.

The colours are safe for red-green colour blindness and have contrast on white and on black. Text and axes are drawn in
`INK`, which `svg` replaces by the page's own text colour.
"""

from __future__ import annotations

import io
import re
import warnings
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

INK = "#010203"
WIDTH = 7.2  # inches, of a page
_LONGEST = 90  # characters of a name in a figure; tables have the whole name
STYLES = ("-", "--", "-.", ":")
PALETTE = ("#3b82d6", "#e08a1e", "#2c9f70", "#b05cc6", "#d1495b", "#7a8793")
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and takes the page's font
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}


def new_figure(height: float) -> tuple[Figure, Axes]:
    """Return a figure as wide as a page and of a height in inches, with one pair of axes on a grid."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.2, color=PALETTE[5])
    axes.set_axisbelow(True)
    return figure, axes


def percent(axis: Axis) -> None:
    """Show the numbers of an axis, between 0 and 1, as percentages."""
    axis.set_major_formatter(PercentFormatter(1.0, decimals=None))


def legend(figure: Figure) -> None:
    """Add a legend above the axes, each name once, where it covers nothing."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    longest = max(map(len, named), default=0)
    columns = max(1, 3 - longest // 25)  # three columns of 25 characters fit
    figure.legend(list(named.values()), list(named), loc="outside upper left", ncols=columns)


def shown(name: str) -> str:
    """Return a user's name for use in a figure: one line, shortened, and never hidden by matplotlib."""
    line = "".join(sign if sign.isprintable() else " " for sign in name)
    if len(line) > _LONGEST:  # either end may distinguish it from others
        line = f"{line[: _LONGEST // 2]}…{line[-_LONGEST // 2 + 1 :]}"
    return f" {line}" if line.startswith("_") else line  # legends omit labels that begin with an underscore


def svg(figure: Figure, name: str, description: str) -> Markup:
    """Return a figure as SVG for embedding in an HTML page.

    Args:
        name: unique name on the page, used in ids.
        description: text alternative for readers who cannot see the figure.
    """
    stream = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        # The browser draws the text, with fonts that have more glyphs than matplotlib's.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]  # without the XML declaration and the doctype
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)

    def own(tag: re.Match[str]) -> str:
        named = re.sub(r'\b(id="|xlink:href="#|href="#|url\(#)', rf"\g<1>{name}-", tag[0])
        return named.replace(INK, "currentColor")

    text = re.sub(r"<[^>]*>", own, text)  # only in tags, not in names
    about = Markup('<svg role="img" aria-label="{}" ').format(description)
    return Markup(text.replace("<svg ", about, 1))
