"""Show how far a run is, from its tables alone: on any machine that reads the run directory, also while it is written.

Ends with Ctrl-C. Where the output is no terminal, the state is printed whenever it has changed.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import raynas
from raynas.commands.options import add_number, add_run
from raynas.text import duration

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = "raynas watch s3://bucket/runs/first\nraynas watch runs/a --once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    add_number(parser, "--every", 5, "seconds between two looks")
    parser.add_argument("--once", action="store_true", help="look once, and end")


def run(options: argparse.Namespace) -> None:
    """Print the state of the run, again and again."""
    from rich.console import Console
    from rich.live import Live

    console, opened = Console(), raynas.open_run(options.run)
    if options.once or not console.is_terminal:
        before: list[str] = []
        while True:
            if (lines := _lines(opened)) != before:
                print("\n".join(lines), flush=True)
            before = lines
            if options.once:
                return
            time.sleep(options.every)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_table(opened), refresh=True)
            time.sleep(options.every)


def _lines(opened: raynas.Run) -> list[str]:
    works = raynas.status(opened)
    if not works:
        return [f"{opened.name}: nothing has begun yet"]
    return [
        ", ".join(part for part in (f"{work.what}: {work.state}", work.progress, work.newest) if part) for work in works
    ]


def _table(opened: raynas.Run) -> Table:
    from rich.table import Table

    table = Table("phase", "state", "time", "progress", "newest", title=opened.name, title_justify="left")
    for work in raynas.status(opened):
        table.add_row(work.what, work.state, duration(work.seconds), work.progress, work.newest)
    return table
