"""Compare a scoring pool with its bare forward passes."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "run directory whose supernet and images are taken (default: an untrained supernet on the digits)"
    parser.add_argument("--run", metavar="DIR", help=text)
    add_number(parser, "--replicas", 2, "Ray actors")
    add_number(parser, "--archs", 200, "subnets to score")


def run(options: argparse.Namespace) -> None:
    """Score the subnets, and print the figures."""
    from raynas.bench.score import bench_score
    from raynas.progress.reporter import terminal

    progress = terminal()
    with progress.doing("scoring"):
        found = bench_score(options.run, replicas=options.replicas, archs=options.archs, progress=progress)
    for name, value in found.items():
        print(f"{name:<28}{value:>16,.4g}" if isinstance(value, float) else f"{name:<28}{value!s:>16}")
