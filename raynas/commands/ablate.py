"""Carry out an ablation: rows of changes to a preset, each with several seeds, compared with a baseline.

What rows have in common is done once. Trials that failed are tried again by the same command. The table is in
ablation.html, ablation.md, ablation.arrow and ablation.png of the run directory, written anew after each trial.
"""

from __future__ import annotations

import argparse

import raynas
from raynas.commands.options import (  # fmt: skip
    add_data,
    add_run_to_make,
    add_seeds,
    add_set,
    add_trial_resources,
    doing,
    given,
)
from raynas.errors import UserError

EXAMPLES = """\
raynas ablate digits/ablation_vitas_v2_recipe --run runs/ablation
raynas ablate digits/ablation_vitas_v2_recipe --run runs/ablation --seeds 5      (adds seeds)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ablation", help="a shipped ablation, such as digits/ablation_vitas_v2_recipe, or a YAML file")
    add_run_to_make(parser)
    add_data(parser)
    add_set(parser)
    add_seeds(parser, "seeds 0 to N-1, in place of those in the file; more can be added later")
    add_trial_resources(parser)


def run(options: argparse.Namespace) -> None:
    from raynas.runs.run import Run

    with doing("carrying out the ablation") as progress:
        rows = raynas.ablate(**given(options), progress=progress)
    run = Run(options.run_dir)
    print(run.read_bytes("ablation.md").decode(), end="")
    print(f"\nAs a page: {run.name}/ablation.html")
    failed = sum(row["failed"] for row in rows if row["measure"] == rows[0]["measure"])
    if failed:
        raise UserError(f"{failed} trial(s) failed, as the table says: mend it, and run the same command again")
