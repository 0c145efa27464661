"""Read a released supernet or a timm model into a run directory, ready to search, evaluate or fine-tune."""

from __future__ import annotations

import argparse
import shlex

import raynas
from raynas.commands.options import add_data, add_run_to_make, add_set, doing, given, positive

EXAMPLES = """\
raynas import autoformer supernet-tiny.pth --run runs/tiny --data /data/imagenet
raynas import timm twins_svt_small --run runs/twins --data /data/imagenet
raynas import transfer runs/a --run runs/flowers --data /data/flowers --size 320"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "the layout of the checkpoint: autoformer, vit-resnas, nasvit, s3 or timm; or transfer, for a network of raynas"
    )
    parser.add_argument("system", help=text)
    text = (
        "the released file; with timm the name of a model, whose weights timm downloads; with transfer a run "
        "directory, the folder of a network, or the name of a timm model"
    )
    parser.add_argument("checkpoint", help=text)
    text = "with timm: a file with the model's weights, instead of a download"
    parser.add_argument("--weights", metavar="FILE", help=text)
    add_run_to_make(parser)
    text = "the space or arch of the checkpoint (default: recognised from the checkpoint)"
    parser.add_argument("--space", help=text)
    text = "preset for search and retraining (default: the system's own preset)"
    parser.add_argument("--preset", help=text)
    add_data(parser, required=True)
    text = "height and width of the images (default: the data's, or the checkpoint's)"
    parser.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    with doing("importing") as progress:
        run = raynas.import_model(**given(options), progress=progress)
    following = "evaluate" if run.has_arch("best") else "search"
    print(f"Imported into {run.name}. Next: raynas {following} {shlex.quote(run.name)}")
