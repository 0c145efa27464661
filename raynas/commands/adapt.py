"""Adapt a trained model to your images and a budget: find the best smaller network in it.

The model becomes the largest subnet of a supernet, its units ordered by importance. The supernet is trained once, with
the model as the teacher, and searched; the winner is fine-tuned, evaluated and exported. Other budgets need no further
training: raynas search RUN --name NAME --set search.constraints...
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_data, add_scoring, add_set, add_workers, doing, given
from raynas.errors import UserError
from raynas.progress.reporter import terminal

EXAMPLES = """\
raynas adapt deit_small_patch16_224 --data /data/flowers --run runs/small --set 'search.constraints.macs=[null, 2e9]'
raynas adapt runs/a --write-space my_space.yaml   to be edited, and given by --space"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a timm model's name, a run directory (its winner), or the folder of an exported or retrained network"
    parser.add_argument("model", help=text)
    parser.add_argument("--run", dest="run_dir", metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    add_data(parser)
    text = "a file with a timm model's weights, instead of a download"
    parser.add_argument("--weights", metavar="FILE", help=text)
    text = "a space whose largest arch is the model (default: derived from the model)"
    parser.add_argument("--space", metavar="FILE", help=text)
    text = "write the space that is derived from the model to a file, to be edited and given by --space, and stop"
    parser.add_argument("--write-space", metavar="FILE", help=text)
    text = "settings of all phases (default: adapt)"
    parser.add_argument("--preset", help=text)
    add_set(parser)
    add_workers(parser)
    add_scoring(parser, "worker and each replica, or this process")


def run(options: argparse.Namespace) -> None:
    """Adapt and say where the report is, or write the space."""
    named = given(options)
    file = named.pop("write_space", None)
    if file is not None:
        if options.space is not None:
            raise UserError("--write-space writes the space that is derived from the model: leave --space out")
        wanted = {name: named[name] for name in ("model", "data", "overrides", "preset", "weights") if name in named}
        with doing("reading the model") as progress:
            raynas.elastic_space(**wanted, progress=progress).save(file)
        print(f"Space written to {file}. Next: the same command with --space {file} --run RUN for --write-space")
        return
    if options.run_dir is None:
        raise UserError("give the run directory to write: --run DIR (see raynas adapt --help)")
    print(f"Report: {raynas.adapt(**named, progress=terminal()).report}")
