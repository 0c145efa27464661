"""Tune a preset: trials with values that Optuna suggests, each a run directory of its own."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import raynas
from raynas.commands.options import add_number, add_preset, add_trial_resources, doing, given

EXAMPLES = """\
raynas tune digits/preset_tune --run runs/tuned
raynas tune digits --tune my_tuning.yaml --run runs/tuned --set recipe.epochs=20
raynas tune autoformer --data s3://bucket/imagenet --tune my_tuning.yaml --run s3://bucket/runs/first --gpu"""

_SHOWN = 10  # trials in the table at the end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_preset(parser)
    text = "YAML file with parameters, objectives and so on, in place of the preset's section tune"
    parser.add_argument("--tune", metavar="FILE", help=text)
    add_number(parser, "--trials", None, "number of trials (default: as the settings say)")
    add_trial_resources(parser)


def run(options: argparse.Namespace) -> None:
    arguments = given(options)
    with doing("tuning") as progress:
        tuned = raynas.tune(arguments.pop("preset"), **arguments, progress=progress)
    print("  ".join([f"{'trial':<8}", *(f"{name:>12}" for name in tuned.objectives), "values"]))
    for trial in tuned.best_first[:_SHOWN]:
        results = [f"{trial.results[name]:>12.4g}" for name in tuned.objectives]
        values = ", ".join(f"{key}={text(value)}" for key, value in trial.values.items())
        print("  ".join([f"{trial.name:<8}", *results, values]))
    if (left := len(tuned.trials) - len(tuned.best_first[:_SHOWN])) > 0:
        print(f"and {left} more; {tuned.summary}")
    print(f"Next: raynas report {shlex.quote(tuned.run.name)}")


def text(value: Any) -> str:
    """Return a value for a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
