"""Time forward passes of networks, which take turns."""

from __future__ import annotations

import argparse

from raynas.commands.bench import print_measured
from raynas.commands.options import add_number, positive

EXAMPLES = "raynas bench forward autoformer/published/tiny my_network --batch-size 32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "export folder, arch file, or the name of a shipped arch"
    parser.add_argument("names", nargs="+", metavar="NETWORK", help=text)
    add_number(parser, "--batch-size", 1, "images of one pass")
    add_number(parser, "--rounds", 30, "number of timed passes of each network")
    text = "number of torch threads (default: torch's own choice)"
    parser.add_argument("--threads", type=positive, metavar="N", help=text)
    parser.add_argument("--run", metavar="DIR", help="run directory to keep the timings in")


def run(options: argparse.Namespace) -> None:
    from raynas.bench.forward import bench_forward

    print_measured(bench_forward, options)
