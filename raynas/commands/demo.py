"""Run everything once on a small dataset: 1,797 images of digits, in a few minutes on two CPUs."""

from __future__ import annotations

import argparse
import time

import raynas
from raynas.commands.options import add_replicas, add_workers, given
from raynas.progress.reporter import terminal

PRESET = "digits/preset"
OVERRIDES = {"retrain.seeds": [0]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "run directory (default: %(default)s)"
    parser.add_argument("--run", dest="run_dir", default="runs/demo", metavar="DIR", help=text)
    add_workers(parser)
    add_replicas(parser)


def run(options: argparse.Namespace) -> None:
    """Run a pipeline on the digits, with an introduction before it and the paths of its results after it."""
    began = time.monotonic()
    print(
        "raynas looks for the best small vision transformer that reads handwritten digits (8 x 8 pixels)\n"
        "within a budget of multiply-accumulates (MACs). It trains one large network that contains all candidates,\n"
        "scores hundreds of them without training them, and trains only the winner.\n"
        f"Everything goes to {options.run_dir}. Stop it whenever you like: the same command continues where it stopped."
    )
    done = raynas.pipeline(PRESET, overrides=OVERRIDES, progress=terminal(), **given(options))
    print(f"\nThe winner: {done.run.name}/{done.run.search().winner_file}")
    print(f"Its files:  {done.exported}")
    print(f"Took {(time.monotonic() - began) / 60:.1f} minutes. Open the report in a browser:")
    print(done.report)
