"""Train a segmentation head on a backbone, on scenes made of real digits, and measure the mean IoU.

A training that is killed goes on with the same command.
"""

from __future__ import annotations

import argparse

from raynas.commands.bench.scenes import add_scenes, run_on_scenes

EXAMPLES = """\
raynas bench segment my_network --to runs/segmented
raynas bench segment s3/published/tiny --scratch --head upernet --to runs/upernet"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scenes(parser, "segment")


def run(options: argparse.Namespace) -> None:
    run_on_scenes(options, "segment")
