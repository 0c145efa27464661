"""Carry out an ablation: rows of changes to a preset, each with several seeds, compared with a baseline.

What rows have in common is done once. Trials that failed are tried again by the same command. The table is in
ablation.html, ablation.md, ablation.arrow and ablation.png of the run directory, written anew after each trial.
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import (
    add_cpus_and_gpu,
    add_data,
    add_number,
    add_run_to_make,
    add_seeds,
    add_set,
    doing,
    given,
    natural,
)  # fmt: skip
from raynas.errors import UserError

EXAMPLES = """\
raynas ablate digits/ablation_vitas_v2_recipe --run runs/ablation
raynas ablate digits/ablation_vitas_v2_recipe --run runs/ablation --seeds 5      (adds seeds)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("ablation", help="a shipped ablation, such as digits/ablation_vitas_v2_recipe, or a YAML file")
    add_run_to_make(parser)
    add_data(parser)
    add_set(parser)
    add_seeds(parser, "seeds 0 to N-1, in place of those in the file; more can be added later")
    add_number(parser, "--at-a-time", None, "number of trials side by side (default: as many as there is room for)")
    text = "Ray Train workers of each trial, 0 for none (default: 0, but 1 on a cluster and with --cpus or --gpu)"
    parser.add_argument("--workers", type=natural, metavar="N", help=text)
    text = "Ray actors that score subnets, 0 for none (default: 0, but 1 on a cluster and with --cpus or --gpu)"
    parser.add_argument("--replicas", type=natural, metavar="N", help=text)
    add_cpus_and_gpu(parser, "trial, or each of its workers and replicas")


def run(options: argparse.Namespace) -> None:
    """Carry the ablation out, and print its table."""
    from raynas.runs.run import Run

    with doing("carrying out the ablation") as progress:
        rows = raynas.ablate(**given(options), progress=progress)
    run = Run(options.run_dir)
    print(run.read_bytes("ablation.md").decode(), end="")
    print(f"\nAs a page: {run.name}/ablation.html")
    failed = sum(row["failed"] for row in rows if row["measure"] == rows[0]["measure"])
    if failed:
        raise UserError(f"{failed} trial(s) failed, as the table says: mend it, and run the same command again")
