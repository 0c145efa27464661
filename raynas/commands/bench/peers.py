"""Measure released code, which you have cloned, beside ours."""

from __future__ import annotations

import argparse

from raynas.commands.bench import add_timing, print_measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "the folder AutoFormer of a clone of github.com/microsoft/Cream; its code is run"
    parser.add_argument("--autoformer", metavar="PATH", help=text)
    text = "a clone of github.com/facebookresearch/NASViT; its code is run"
    parser.add_argument("--nasvit", metavar="PATH", help=text)
    add_timing(parser, 5, 8)


def run(options: argparse.Namespace) -> None:
    from raynas.bench.peers import bench_peers

    print_measured(bench_peers, options)
