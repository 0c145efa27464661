"""Train a detector on a backbone, on scenes made of real digits, and measure COCO's average precision.

A training that is killed goes on with the same command.
"""

from __future__ import annotations

import argparse

from raynas.commands.bench.scenes import add_scenes, run_on_scenes

EXAMPLES = "raynas bench detect my_network --head mask_rcnn --to runs/detected"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_scenes(parser, "detect")


def run(options: argparse.Namespace) -> None:
    run_on_scenes(options, "detect")
