"""Compare training steps of a DeiT-Ti-shaped subnet with timm's deit_tiny."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number, doing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_number(parser, "--rounds", 11, "number of timed steps of each network")
    add_number(parser, "--batch-size", 8, "images of one step")
    add_number(parser, "--threads", 1, "number of torch threads")


def run(options: argparse.Namespace) -> None:
    """Time the steps, and print a table."""
    from raynas.bench.step import bench_step

    with doing("timing") as progress:
        timings = bench_step(options.rounds, options.batch_size, options.threads, progress)
    print(f"{'network':<28}{'median ms':>12}{'ratio':>8}")
    for timing in timings:
        print(f"{timing.name:<28}{1000 * timing.seconds:>12.1f}{timing.ratio:>8.3f}")
