"""Compare runs side by side: their results, and the settings in which they differ."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

import raynas
from raynas.commands.options import add_figure, given
from raynas.text import columns, duration, one_line

EXAMPLES = "raynas compare runs/a runs/b\nraynas compare runs/a runs/b --figure fronts.png"

_LONGEST = 40  # characters of a setting
_MOST, _OF_EACH = 40, 4  # settings that are listed whatever they are; of each section if there are more


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
    settings, left = listed(compared.differences)
    print("\n".join(columns([*map(list, zip(lines, *cells, strict=True)), [""], *settings])))
    if left:
        print(f"{left} settings are only counted; in Python raynas.compare(runs).differences has all")
    if not compared.differences:
        print("All settings are equal.")
    if figure is not None:
        compared.plot_front().savefig(figure)
        print(f"The fronts are drawn in {figure}")


def listed(differences: Mapping[str, Sequence[Any]]) -> tuple[list[list[str]], int]:
    """Return the rows of the table of settings, and how many settings are only counted in it.

    Where runs are too unlike to list all, each section has its first settings, and one that a run lacks only a number.
    """
    sections: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for key, values in differences.items():
        lacks = tuple(value is None for value in values)
        sections.setdefault((key.partition(".")[0], lacks), []).append(key)
    rows, counted = [], 0
    for (section, lacks), keys in sections.items():
        shown = keys
        if len(differences) > _MOST and len(keys) > _OF_EACH:
            shown = [] if any(lacks) else keys[:_OF_EACH]
        rows += [[key, *map(text, differences[key])] for key in shown]
        if left := len(keys) - len(shown):
            counted += left
            rows.append([f"{section}.*", *("-" if lack else f"{left} settings" for lack in lacks)])
    return rows, counted


def text(value: Any) -> str:
    """Return a setting for the table; `-` for one that a run has not."""
    return "-" if value is None else one_line(value if isinstance(value, str) else json.dumps(value), _LONGEST)
