"""Train a supernet.

The run directory then holds the supernet's weights and a table of its training. Searches later
score subnets on images that are held out of the training images.
"""

from __future__ import annotations

import argparse
import shlex

import raynas
from raynas.commands.options import add_cpus_and_gpu, add_preset, add_workers, doing, given

EXAMPLES = "raynas train digits --run runs/a --set recipe.epochs=3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_preset(parser)
    add_workers(parser)
    add_cpus_and_gpu(parser, "worker, or this process")


def run(options: argparse.Namespace) -> None:
    with doing("preparing the training") as progress:
        run = raynas.train(**given(options), progress=progress)
    print(f"Next: raynas search {shlex.quote(run.name)}")
