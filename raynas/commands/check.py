"""Look at data before training: what it holds, what cannot be read, and how images will be read."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_data, add_set, doing, given

EXAMPLES = """\
raynas check --data /data/flowers
raynas check autoformer --data /data/flowers"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("preset", nargs="?", help="preset that the data is for: a shipped one, or a YAML file")
    add_data(parser)
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    """Print what the data holds."""
    with doing("looking at the data") as progress:
        raynas.check(**given(options), progress=progress)
