"""Compare runs side by side: their results, and the settings in which they differ."""

from __future__ import annotations

import argparse
import json
from typing import Any

import raynas
from raynas.commands.options import add_figure, given
from raynas.text import columns, duration, one_line

EXAMPLES = "raynas compare runs/a runs/b\nraynas compare runs/a runs/b --figure fronts.png"

_LONGEST = 40  # characters of a setting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run directories: paths, or URIs")
    add_figure(parser, "also draw the fronts of all runs into a file")


def run(options: argparse.Namespace) -> None:
    """Print both tables, and draw the fronts if asked."""
    named = given(options)
    figure = named.pop("figure", None)
    compared = raynas.compare(**named)
    lines = ("", "state", "space", "data", "time", "best", "measured")
    cells = [
        (each.run, each.state, each.space or "", each.data or "", duration(each.seconds), each.result, each.how)
        for each in compared.overviews
    ]
    settings = [[key, *map(text, values)] for key, values in compared.differences.items()]
    print("\n".join(columns([*map(list, zip(lines, *cells, strict=True)), [""], *settings])))
    if not compared.differences:
        print("All settings are equal.")
    if figure is not None:
        compared.plot_front().savefig(figure)
        print(f"The fronts are drawn in {figure}")


def text(value: Any) -> str:
    """Return a setting for the table; `-` for one that a run has not."""
    return "-" if value is None else one_line(value if isinstance(value, str) else json.dumps(value), _LONGEST)
