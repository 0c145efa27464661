"""Run a whole preset: train, search, retrain, evaluate, export, report."""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_preset, add_scoring, add_workers, given
from raynas.progress.reporter import terminal

EXAMPLES = "raynas pipeline autoformer --data /data/imagenet --run runs/a --workers 8 --replicas 8 --gpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_preset(parser)
    add_workers(parser)
    add_scoring(parser, "worker and each replica, or this process")


def run(options: argparse.Namespace) -> None:
    print(f"Report: {raynas.pipeline(**given(options), progress=terminal()).report}")
