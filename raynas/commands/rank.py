"""Measure how well inherited weights rank subnets: by MACs, and against networks that were trained alone."""

from __future__ import annotations

import argparse

from raynas.commands.options import (
    add_gpu,
    add_number,
    add_replicas,
    add_run,
    add_set,
    overrides,
    positive,
    resources,
    whole,
)
from raynas.config import MOST_SEEDS

EXAMPLES = "raynas rank runs/a --archs 2000 --train 50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    add_number(parser, "--archs", 2000, "number of subnets to score")
    add_number(parser, "--buckets", 8, "number of equal ranges of MACs to draw them from")
    text = "Parquet file of networks trained elsewhere, with the columns network, values and accuracy"
    parser.add_argument("--truth", metavar="FILE", help=text)
    text = "also train N of the subnets alone, as the truth"
    parser.add_argument("--train", type=positive, default=0, metavar="N", help=text)
    text = "also fine-tune these N from inherited weights for EPOCHS epochs"
    parser.add_argument("--finetune", type=positive, metavar="EPOCHS", help=text)
    text = "train each of them with N seeds (default: 1)"
    parser.add_argument("--seeds", type=whole(1, MOST_SEEDS), metavar="N", help=text)
    text = "number of trainings side by side; 1 trains without Ray (default: one for each CPU; with --replicas 0: 1)"
    add_number(parser, "--parallel", None, text)
    add_replicas(parser)
    add_gpu(parser, "replica")
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    """Rank, and print the table."""
    import raynas
    from raynas.progress.reporter import terminal

    progress = terminal()
    with progress.doing("ranking"):
        rows = raynas.rank(
            options.run,
            overrides(options),
            archs=options.archs,
            buckets=options.buckets,
            train=options.train,
            finetune_epochs=options.finetune,
            seeds=range(options.seeds) if options.seeds else None,
            truth=options.truth,
            resources=resources(options),
            parallel=options.parallel,
            progress=progress,
        )
    from raynas.phases.rank import rank_lines

    for line in rank_lines(rows):
        print(line)
