"""Measure finished networks on the test split.

No other command reads the test split. How often it has been read is counted, because a network that is chosen by its
test accuracy is chosen on the test split.
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import add_arch, add_replica, add_run, doing, given

EXAMPLES = "raynas evaluate runs/a"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    more = "; front or NAME/front for all archs of a search's front (default: the winner and every retrained network)"
    add_arch(parser, more)
    parser.add_argument("--again", action="store_true", help="measure again what has been measured before")
    add_replica(parser, "measures")


def run(options: argparse.Namespace) -> None:
    with doing("evaluating") as progress:
        rows = raynas.evaluate(**given(options), progress=progress)
    columns = ("pixels", 11), ("MACs", 16), ("top-1", 9), ("images", 9), ("reading", 9)
    print(f"{'arch':<14}{'weights':<12}{'seed':>5}" + "".join(f"{name:>{width}}" for name, width in columns))
    for row in rows:
        seed = "" if row["seed"] is None else row["seed"]
        pixels = "" if row["height"] is None else f"{row['height']} x {row['width']}"
        print(
            f"{row['arch']:<14}{row['how']:<12}{seed:>5}{pixels:>11}{row['macs']:>16,}{row['accuracy']:>9.2%}"
            f"{row['images']:>9,}{row['reading']:>9}"
        )
    count = max(row["reading"] for row in raynas.open_run(options.run).table("evaluations").to_pylist())
    print(f"The test split has been read {count} time(s) in this run.")
