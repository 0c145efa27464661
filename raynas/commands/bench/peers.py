"""Measure released code, which you have cloned, beside ours."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_device, add_number, doing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    text = "the folder AutoFormer of a clone of github.com/microsoft/Cream; its code is run"
    parser.add_argument("--autoformer", metavar="PATH", help=text)
    text = "a clone of github.com/facebookresearch/NASViT; its code is run"
    parser.add_argument("--nasvit", metavar="PATH", help=text)
    add_number(parser, "--rounds", 5, "number of measurements of each kind")
    add_number(parser, "--batch-size", 8, "images of one pass")
    add_number(parser, "--threads", 1, "number of torch threads")
    add_device(parser)


def run(options: argparse.Namespace) -> None:
    """Measure, and print a table."""
    from raynas.bench.measured import table
    from raynas.bench.peers import bench_peers

    with doing("measuring") as progress:
        sizes = (options.rounds, options.batch_size, options.threads, options.device)
        rows = bench_peers(options.autoformer, options.nasvit, *sizes, progress=progress)
    print(*table(rows), sep="\n")
