"""Write one HTML page about a run, or about all trials of an experiment, and print its path."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_run, given

EXAMPLES = "raynas report runs/a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)


def run(options: argparse.Namespace) -> None:
    """Write the report, and print its path."""
    print(raynas.report(**given(options)))
