"""Show how far a run is, from its tables alone: on any machine that reads the run directory, also while it is written.

In a terminal it ends with Ctrl-C. Elsewhere, as in a pipe or a job of continuous integration, the state is printed
whenever it has changed, and it ends once nothing has been under way for a minute: all is finished, stopped, killed, or
silent. Only tables are seen, so that a command that is about to begin its next phase looks the same.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import raynas
from raynas.commands.options import add_number, add_run
from raynas.text import duration

if TYPE_CHECKING:
    from rich.table import Table

    from raynas.reports.status import Work

QUIET_S = 60.0
"""Seconds without anything under way after which the output ends where it is no terminal."""

EXAMPLES = "raynas watch s3://bucket/runs/first\nraynas watch runs/a --once"


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
        busy = time.monotonic()
        while True:
            works = raynas.status(opened)
            if (lines := _lines(opened.name, works)) != before:
                print("\n".join(lines), flush=True)
            before = lines
            if any(work.state == "running" for work in works):
                busy = time.monotonic()
            if options.once:
                return
            if time.monotonic() - busy > QUIET_S:
                print(f"nothing has been under way for {duration(QUIET_S)}")
                return
            time.sleep(options.every)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_table(opened), refresh=True)
            time.sleep(options.every)


def _lines(name: str, works: Sequence[Work]) -> list[str]:
    if not works:
        return [f"{name}: nothing has begun yet"]
    return [
        ", ".join(part for part in (f"{work.what}: {work.state}", work.progress, work.newest) if part) for work in works
    ]


def _table(opened: raynas.Run) -> Table:
    from rich.table import Table

    table = Table("phase", "state", "time", "progress", "newest", title=opened.name, title_justify="left")
    for work in raynas.status(opened):
        table.add_row(work.what, work.state, duration(work.seconds), work.progress, work.newest)
    return table
