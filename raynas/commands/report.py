"""Write one HTML page about a run, or about all trials of an experiment, and print its path."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_run, given

EXAMPLES = "raynas report runs/a\nraynas report runs/a --tensorboard events"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    text = "also write event files into this folder: tensorboard --logdir DIR"
    parser.add_argument("--tensorboard", metavar="DIR", help=text)


def run(options: argparse.Namespace) -> None:
    print(raynas.report(**given(options)))
