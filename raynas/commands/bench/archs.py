"""Measure how many archs are sampled, costed, varied and searched a second."""

from __future__ import annotations

import argparse

from raynas.commands.bench import print_measured
from raynas.commands.options import add_number

EXAMPLES = "raynas bench archs vitas/twins_small"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a shipped space, or a YAML file (default: %(default)s)"
    parser.add_argument("space", nargs="?", default="autoformer/small", help=text)
    add_number(parser, "--candidates", 100_000, "archs that each search by a predictor looks at")
    add_number(parser, "--rounds", 5, "number of measurements of each rate")


def run(options: argparse.Namespace) -> None:
    from raynas.bench.archs import bench_archs

    print_measured(bench_archs, options)
