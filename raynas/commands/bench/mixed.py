"""Time batches that several subnets share, by masks and by groups."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_device, add_number, doing

EXAMPLES = "raynas bench mixed vit_resnas/tiny --archs 4 --batch-size 32 --device cuda"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("space", help="a shipped space, or a YAML file")
    add_number(parser, "--archs", 8, "number of subnets that share a batch")
    add_number(parser, "--batch-size", 64, "images of one batch")
    add_number(parser, "--rounds", 5, "number of timed passes of each")
    add_number(parser, "--threads", 1, "number of torch threads")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Time the batches, and print a table."""
    from raynas.bench.mixed import bench_mixed

    sizes = (options.archs, options.batch_size, options.rounds, options.threads)
    with doing("timing") as progress:
        timings = bench_mixed(options.space, *sizes, options.device, progress=progress)
    print(f"{'forward and backward':<24}{'median ms':>12}{'to largest':>12}{'to mean':>12}")
    for this in timings:
        chosen = "  <- chosen" if this.chosen else ""
        print(f"{this.name:<24}{1000 * this.seconds:>12.1f}{this.to_largest:>12.3f}{this.to_mean:>12.3f}{chosen}")
