"""Measure every ratio of speed, and print them in one table."""

from __future__ import annotations

import argparse

from raynas.bench import PARTS
from raynas.commands.bench import add_timing, print_measured
from raynas.commands.options import add_number

EXAMPLES = "raynas bench all --only step sandwich --device cuda"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"what to measure, of {', '.join(PARTS)} (default: all)"
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=text)
    add_timing(parser, 5)
    add_number(parser, "--replicas", 2, "number of Ray actors of the scoring pool")


def run(options: argparse.Namespace) -> None:
    from raynas.bench.all import bench_all

    print_measured(bench_all, options)
