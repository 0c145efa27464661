"""Time batches that several subnets share, by masks and by groups."""

from __future__ import annotations

import argparse

from raynas.commands.bench import add_timing, print_measured
from raynas.commands.options import add_number

EXAMPLES = "raynas bench mixed vit_resnas/tiny --archs 4 --batch-size 32 --device cuda"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", help="a shipped space, or a YAML file")
    add_number(parser, "--archs", 8, "number of subnets that share a batch")
    add_timing(parser, 5, 64)


def run(options: argparse.Namespace) -> None:
    from raynas.bench.mixed import bench_mixed

    print_measured(bench_mixed, options)
