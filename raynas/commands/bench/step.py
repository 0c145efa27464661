"""Compare passes of a DeiT-Ti-shaped subnet with those of timm's deit_tiny."""

from __future__ import annotations

import argparse

from raynas.commands.bench import add_timing, print_measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, 11, 8)


def run(options: argparse.Namespace) -> None:
    from raynas.bench.step import bench_step

    print_measured(bench_step, options)
