"""Measure every ratio of speed, and print them in one table."""

from __future__ import annotations

import argparse

from raynas.bench import PARTS
from raynas.commands.options import add_device, add_number, doing

EXAMPLES = "raynas bench all --only step sandwich --device cuda"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = f"what to measure, of {', '.join(PARTS)} (default: all)"
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=text)
    add_number(parser, "--rounds", 5, "number of measurements of each kind")
    add_number(parser, "--threads", 1, "number of torch threads, also of each replica")
    add_number(parser, "--replicas", 2, "number of Ray actors of the scoring pool")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Measure, and print a table."""
    from raynas.bench.all import bench_all
    from raynas.bench.measured import table

    with doing("measuring") as progress:
        sizes = (options.rounds, options.threads, options.device, options.replicas)
        rows = bench_all(options.only, *sizes, progress=progress)
    print(*table(rows), sep="\n")
