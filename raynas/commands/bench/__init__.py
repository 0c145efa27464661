"""Measure speed on this machine, or what a backbone is worth in segmentation and detection."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from raynas.commands.options import add_device, add_number, doing
from raynas.commands.parser import Parser

if TYPE_CHECKING:
    from raynas.bench.measured import Measured

KINDS = {
    "all": "measure every ratio of speed, and print them in one table",
    "archs": "measure how many archs are sampled, costed, varied and searched a second",
    "forward": "time forward passes of networks",
    "latency": "time subnets alone, one after the other, as a search by latency does",
    "mixed": "time batches that several subnets share, by masks and by groups",
    "search": "compare search algorithms on 4,000 subnets whose scores are known",
    "peers": "measure released code, which you have cloned, beside ours",
    "score": "compare the speed of a scoring pool with that of its forward passes alone",
    "tune": "compare the samplers of tuning on functions whose optima are known",
    "step": "compare passes and training steps of a DeiT-Ti-shaped subnet with timm's deit_tiny",
    "segment": "train a segmentation head on a backbone, on scenes of digits, and measure it",
    "detect": "train a detector on a backbone, on scenes of digits, and measure it",
    "window": "time random archs within narrow windows of a cost",
}
"""Each kind of measurement with its line in the help; each is a module of this package."""


def add_arguments(parser: Parser) -> None:
    """Declare the kinds of measurements."""
    parser.add_commands("what to measure", "WHAT", __name__, KINDS)


def add_timing(parser: argparse.ArgumentParser, rounds: int, batch_size: int | None = None) -> None:
    """Add how often and on what is measured, with the defaults of a kind of measurement."""
    add_number(parser, "--rounds", rounds, "number of measurements of each kind")
    if batch_size is not None:
        add_number(parser, "--batch-size", batch_size, "images of one pass")
    add_number(parser, "--threads", 1, "number of torch threads")
    add_device(parser)


def print_measured(bench: Callable[..., list[Measured]], options: argparse.Namespace) -> None:
    """Measure with the options as arguments of a function, whose parameters they name, and print the table."""
    from raynas.bench.measured import table

    named = {name: value for name, value in vars(options).items() if name != "action"}
    with doing("measuring") as progress:
        rows = bench(**named, progress=progress)
    print(*table(rows), sep="\n")
