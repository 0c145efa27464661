"""Compare the speed of a scoring pool with that of its forward passes alone."""

from __future__ import annotations

import argparse

from raynas.commands.bench import print_measured
from raynas.commands.options import add_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "run directory with the supernet and images to use (default: an untrained supernet on the digits)"
    parser.add_argument("--run", metavar="DIR", help=text)
    add_number(parser, "--replicas", 2, "number of Ray actors")
    add_number(parser, "--archs", 1200, "number of subnets to score; fewer do for a supernet on many images")


def run(options: argparse.Namespace) -> None:
    from raynas.bench.score import bench_score

    print_measured(bench_score, options)
