"""Measure how many archs are sampled, costed, varied and searched a second."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number, doing

EXAMPLES = "raynas bench archs vitas/twins_small"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    space = "autoformer/small"
    parser.add_argument(
        "space", nargs="?", default=space, help="a shipped space, or a YAML file (default: %(default)s)"
    )
    add_number(parser, "--candidates", 100_000, "archs that each search by a predictor looks at")
    add_number(parser, "--rounds", 5, "number of measurements of each rate")


def run(options: argparse.Namespace) -> None:
    """Measure the rates, and print a table."""
    from raynas.bench.archs import bench_archs
    from raynas.bench.measured import table

    with doing("measuring") as progress:
        rows = bench_archs(options.space, options.candidates, options.rounds, progress)
    print(*table(rows), sep="\n")
