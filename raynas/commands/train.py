"""Train a supernet.

The run directory then holds the supernet's weights and a table of its training. Searches later
score subnets on images that are held out of the training images.
"""

from __future__ import annotations

import argparse
import shlex

from raynas.commands.options import add_gpu, add_preset, add_workers, overrides, resources

EXAMPLES = "raynas train digits --run runs/a --set recipe.epochs=3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_preset(parser)
    add_workers(parser)
    add_gpu(parser, "worker")


def run(options: argparse.Namespace) -> None:
    """Train, and say what comes next."""
    import raynas
    from raynas.progress.reporter import terminal

    progress = terminal()
    with progress.doing("training the supernet"):
        run = raynas.train(
            options.preset,
            options.run,
            options.data,
            overrides(options),
            resources=resources(options),
            progress=progress,
        )
    print(f"Next: raynas search {shlex.quote(run.name)}")
