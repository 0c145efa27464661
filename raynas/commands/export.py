"""Write a network as plain files: weights, ONNX, torch.export, and how images are prepared."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_arch, add_replica, add_run, doing, given, positive, whole

EXAMPLES = "raynas export runs/a --to my_network"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_arch(parser, default="best")
    text = "export inherited weights, even if the network was retrained"
    parser.add_argument("--inherited", action="store_true", help=text)
    text = "export the network that was retrained at this image size (default: the run's)"
    parser.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    text = "export the network that was retrained with this seed (default: the lowest)"
    parser.add_argument("--seed", type=whole(0, 2**63 - 1), metavar="SEED", help=text)
    parser.add_argument("--to", metavar="DIR", help="folder to write (default: the folder export in the run directory)")
    text = "also write ONNX (default: if raynas[onnx] is installed)"
    parser.add_argument("--onnx", action=argparse.BooleanOptionalAction, help=text)
    add_replica(parser, "calibrates the batch norms of inherited weights")


def run(options: argparse.Namespace) -> None:
    with doing("exporting") as progress:
        raynas.export(**given(options), progress=progress)
