"""Compare passes of a DeiT-Ti-shaped subnet with those of timm's deit_tiny."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_device, add_number, doing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_number(parser, "--rounds", 11, "number of timed passes of each network")
    add_number(parser, "--batch-size", 8, "images of one pass")
    add_number(parser, "--threads", 1, "number of torch threads")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Time the passes, and print a table."""
    from raynas.bench.measured import table
    from raynas.bench.step import bench_step

    with doing("timing") as progress:
        rows = bench_step(options.rounds, options.batch_size, options.threads, options.device, progress)
    print(*table(rows), sep="\n")
