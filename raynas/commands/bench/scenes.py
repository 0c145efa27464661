"""Options and action that `raynas bench segment` and `raynas bench detect` share."""

from __future__ import annotations

import argparse
from typing import Literal

from raynas.commands.options import add_number, doing

HEADS = {"segment": ("semantic_fpn", "upernet", "segformer"), "detect": ("retinanet", "fcos", "mask_rcnn")}
"""Heads by task, the default first: those of `raynas.downstream`, which costs seconds to import."""


def add_scenes(parser: argparse.ArgumentParser, task: Literal["segment", "detect"]) -> None:
    """Add the backbone, the head, and settings of scenes and training."""
    text = "a run directory (its winner), the folder of a network, a timm model; with --scratch also an arch's name"
    parser.add_argument("backbone", help=text)
    parser.add_argument("--to", required=True, metavar="DIR", help="folder for weights and results")
    text = f"{', '.join(HEADS[task])} (default: {HEADS[task][0]})"
    parser.add_argument("--head", choices=HEADS[task], default=HEADS[task][0], metavar="HEAD", help=text)
    add_number(parser, "--width", 64, "channels of the head and of its feature pyramid")
    parser.add_argument("--scratch", action="store_true", help="take the backbone's form alone, with new weights")
    text = "change a setting of the scenes, such as size=[128,128] or train=4000; repeatable"
    parser.add_argument("--scenes", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "change a setting of the training, such as epochs=40 or seed=1; repeatable"
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--gpu", action="store_true", help="train on a GPU")


def run_on_scenes(options: argparse.Namespace, task: Literal["segment", "detect"]) -> None:
    """Train, measure, and print the results."""
    from raynas.config import Document, validate
    from raynas.data.scenes import ScenesConfig
    from raynas.downstream.on_scenes import train_on_scenes
    from raynas.downstream.train import DenseRecipe
    from raynas.presets.preset import parse_overrides

    scenes = validate(ScenesConfig, Document(parse_overrides(options.scenes), "--scenes"))
    recipe = validate(DenseRecipe, Document(parse_overrides(options.overrides), "--set"))
    with doing(f"training to {task}") as progress:
        results = train_on_scenes(
            task,
            options.backbone,
            options.to,
            options.head,
            options.width,
            options.scratch,
            scenes,
            recipe,
            "cuda" if options.gpu else "cpu",
            progress,
        )
    for name, value in results.items():
        if name not in ("losses", "fingerprint"):
            print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:.4f}")
