"""Search the search space (S3): train a supernet, measure the space with it, change its choices, repeat."""

from __future__ import annotations

import argparse
import shlex

import raynas
from raynas.commands.options import add_number, add_preset, add_scoring, doing, given
from raynas.errors import UserError

EXAMPLES = """\
raynas evolve-space digits/preset_evolution --run runs/e
raynas evolve-space digits/preset_evolution --run runs/f --try space_evolution.tau=[0.2,0.4]"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_preset(parser)
    text = "try each value of a list for a key of the preset; repeatable, for all combinations"
    parser.add_argument("--try", dest="values", action="append", default=[], metavar="KEY=[...]", help=text)
    text = "let Optuna suggest N of the combinations, one after the other (default: all of them)"
    add_number(parser, "--trials", None, text)
    add_number(parser, "--at-a-time", None, "number of trials side by side (default: as many as there is room for)")
    text = "also carry out the preset's search in every space, to find the best subnet of each within the same budget"
    parser.add_argument("--search", action="store_true", help=text)
    add_number(parser, "--workers", 1, "number of Ray Train workers of each trial")
    add_scoring(parser, "worker and each replica")


def run(options: argparse.Namespace) -> None:
    """Evolve the space, and print a table of the trials and what comes next."""
    from raynas.outer.evolution.progress import trial_name

    with doing("evolving the space") as progress:
        found = raynas.evolve_space(**given(options), progress=progress)
    print(f"{'lowest E-T error':>16}  {'space':<40} tried")
    ended = [trial for trial in found if trial.error is None]
    for trial in ended:
        space = f"{trial.run.name}/spaces/{trial.best.index}.yaml"
        tried = ", ".join(f"{key}={value}" for key, value in trial.values.items())
        print(f"{trial.best.quality.error:>16.2%}  {space:<40} {tried or '-'}")
    equal = [trial for trial in ended if trial.best.quality.error == ended[0].best.quality.error]
    if len(equal) > 1:
        print(
            f"{len(equal)} trials have the lowest error; the first of them in the table has fewer MACs on average, or "
            "if these are equal was tried first"
        )
    if failed := [trial_name(trial.values) for trial in found if trial.error is not None]:
        raise UserError(
            f"{len(failed)} trial(s) failed, {'; '.join(failed)}: mend what is said above, and run the same command "
            "again to continue"
        )
    folder = f"{found[0].run.name}/iterations/{found[0].best.index}"
    print(f"Next: raynas {'retrain' if options.search else 'search'} {shlex.quote(folder)}")
