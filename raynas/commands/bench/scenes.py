"""Options and action that `raynas bench segment` and `raynas bench detect` share."""

from __future__ import annotations

import argparse
from typing import Literal

from raynas.commands.options import add_number, add_replica, doing, given

HEADS = {"segment": ("semantic_fpn", "upernet", "segformer"), "detect": ("retinanet", "fcos", "mask_rcnn")}
"""Heads by task, the default first: those of `raynas.downstream`, which costs seconds to import."""


def add_scenes(parser: argparse.ArgumentParser, task: Literal["segment", "detect"]) -> None:
    """Add the backbone, the head, settings of scenes and training, and where it runs."""
    text = "a run directory (its winner), the folder of a network, or a timm model; with --scratch a folder or an arch"
    parser.add_argument("backbone", help=text)
    parser.add_argument("--weights", metavar="FILE", help="weights of a timm model, in place of the download")
    text = "folder for weights and results; on a cluster one that all nodes see"
    parser.add_argument("--to", required=True, metavar="DIR", help=text)
    text = f"{', '.join(HEADS[task])} (default: {HEADS[task][0]})"
    parser.add_argument("--head", choices=HEADS[task], metavar="HEAD", help=text)
    add_number(parser, "--width", 64, "channels of the head and of its feature pyramid")
    parser.add_argument("--scratch", action="store_true", help="take the backbone's form alone, with new weights")
    text = "change a setting of the scenes, such as size=[128,128] or train=4000; repeatable"
    parser.add_argument("--scenes", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "change a setting of the training, such as epochs=40 or seed=1; repeatable"
    parser.add_argument("--set", dest="recipe", action="append", default=[], metavar="KEY=VALUE", help=text)
    add_replica(parser, "trains and measures")


def run_on_scenes(options: argparse.Namespace, task: Literal["segment", "detect"]) -> None:
    """Train, measure, and print the results."""
    from raynas.config import validate
    from raynas.data.scenes import ScenesConfig
    from raynas.documents import Document, parse_overrides
    from raynas.downstream.on_scenes import train_on_scenes
    from raynas.downstream.train import DenseRecipe

    named = given(options)
    named["scenes"] = validate(ScenesConfig, Document(parse_overrides(named["scenes"]), "--scenes"))
    named["recipe"] = validate(DenseRecipe, Document(parse_overrides(named["recipe"]), "--set"))
    with doing(f"training to {task}") as progress:
        results = train_on_scenes(task, **named, progress=progress)
    for name, value in results.items():
        if name not in ("losses", "fingerprint"):
            print(f"{name}: {value:,}" if isinstance(value, int) else f"{name}: {value:.4f}")
