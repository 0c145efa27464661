"""List the run directories in a folder: their state, space, data, time, and best result so far.

The best result is that of the most accurate winner of any search; a search that is not the run's main one is named. A
result on the test split comes before one on the search split. The trials of an experiment are listed if its own run
directory is given.
"""

from __future__ import annotations

import argparse
import textwrap

import raynas
from raynas.commands.options import given
from raynas.text import columns, duration, one_line

EXAMPLES = "raynas runs runs\nraynas runs s3://bucket/runs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", help="a folder, or a URI such as s3://bucket/runs")


def run(options: argparse.Namespace) -> None:
    """Print one line for each run, then why some of them cannot be read."""
    found = raynas.list_runs(**given(options))
    rows = [
        [
            each.run,
            one_line(each.state, 60),
            each.space or "",
            each.data or "",
            duration(each.seconds),
            each.result,
            each.how,
        ]
        for each in found
    ]
    if rows:
        print("\n".join(columns([["run", "state", "space", "data", "time", "best", "measured"], *rows])))
    else:
        print(f"no run directories in {options.folder}")
    unreadable = [each.reason for each in found if each.reason]
    if unreadable:
        print(f"\n{len(unreadable)} of {len(found)} cannot be read:")
    for reason in unreadable:
        print(textwrap.fill(one_line(reason), 80, subsequent_indent="  ", break_on_hyphens=False))
