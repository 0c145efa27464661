"""Score subnets of a trained supernet and find the best within a budget.

The `search` section of the run's preset says what is searched for, by which algorithm and within which limits.
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import PRECISIONS, add_run, add_scoring, add_set, doing, given, positive
from raynas.text import shown

EXAMPLES = "raynas search runs/a --set 'search.constraints.macs=[null, 4.5e9]' --replicas 4"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_scoring(parser, "replica")
    text = "name of this search; a run may hold several (default: %(default)s)"
    parser.add_argument("--name", default="search", type=_name, help=text)
    text = "also run random search with the same number of evaluations, for comparison"
    parser.add_argument("--random", action="store_true", help=text)
    text = "score on N images of the search split (default: all)"
    parser.add_argument("--images", type=positive, metavar="N", help=text)
    text = "precision of the forward passes (default: %(default)s)"
    parser.add_argument("--precision", default="fp32", choices=PRECISIONS, help=text)
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    with doing("searching") as progress:
        winner = raynas.search_run(**given(options), progress=progress)
    from raynas.reports.lines import describe_cost

    run = raynas.open_run(options.run)
    print(f"Winner: {run.name}/{run.search(options.name).winner_file} ({winner.id}: {describe_cost(winner)})")


def _name(text: str) -> str:
    """Read the name of a search, which names a folder as well."""
    if not text.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"must be of letters, digits, - and _, not {shown(text)}")
    return text
