"""Time forward passes of networks, which take turns."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number, positive
from raynas.progress.reporter import terminal

EXAMPLES = "raynas bench forward autoformer/published/tiny my_network --batch-size 32"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "export folder, arch file, or the name of a shipped arch"
    parser.add_argument("names", nargs="+", metavar="NETWORK", help=text)
    add_number(parser, "--batch-size", 1, "images of one pass")
    add_number(parser, "--rounds", 30, "number of timed passes of each network")
    text = "number of torch threads (default: torch's own choice)"
    parser.add_argument("--threads", type=positive, metavar="N", help=text)
    parser.add_argument("--run", metavar="DIR", help="run directory to keep the timings in")


def run(options: argparse.Namespace) -> None:
    """Time the networks, and print a table."""
    from raynas.bench.forward import bench_forward
    from raynas.runs.run import Run

    run = None if options.run is None else Run(options.run)
    timings = bench_forward(options.names, options.batch_size, options.rounds, options.threads, run, terminal())
    print(f"{'network':<40}{'MACs':>16}{'median ms':>12}{'quartiles ms':>20}{'images/s':>12}")
    for timing in timings:
        low, high = (f"{1000 * value:.2f}" for value in timing.quartiles)
        rate = timing.batch_size / timing.median
        print(f"{timing.name:<40}{timing.macs:>16,}{1000 * timing.median:>12.2f}{f'{low} to {high}':>20}{rate:>12,.1f}")
