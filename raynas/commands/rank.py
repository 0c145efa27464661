"""Measure how well inherited weights rank subnets: by MACs, and against networks that were trained alone."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import (
    add_number,
    add_run,
    add_scoring,
    add_seeds,
    add_set,
    add_workers,
    doing,
    given,
    positive,
)

EXAMPLES = "raynas rank runs/a --archs 2000 --train 50"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_number(parser, "--archs", 2000, "number of subnets to score")
    add_number(parser, "--buckets", 8, "number of equal ranges of MACs to draw them from")
    text = "Parquet file of networks trained elsewhere, with the columns network, values and accuracy"
    parser.add_argument("--truth", metavar="FILE", help=text)
    text = "training-free scores to correlate as well: params, macs, synflow, naswot, dss, az_nas"
    parser.add_argument("--proxies", nargs="+", default=(), metavar="NAME", help=text)
    text = "also train N of the subnets alone, as the truth"
    parser.add_argument("--train", type=positive, default=0, metavar="N", help=text)
    text = "also fine-tune these N from inherited weights for EPOCHS epochs"
    parser.add_argument("--finetune", dest="finetune_epochs", type=positive, metavar="EPOCHS", help=text)
    add_seeds(parser, "train each of them with N seeds (default: 1)")
    add_number(parser, "--parallel", None, "number of trainings side by side (default: as many as there is room for)")
    add_workers(parser, None, "1 for each training on a cluster, or of several; with --replicas 0: 0")
    add_scoring(parser, "worker and each replica")
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    with doing("ranking") as progress:
        rows = raynas.rank(**given(options), progress=progress)
    from raynas.phases.rank import rank_lines

    print("\n".join(rank_lines(rows)))
