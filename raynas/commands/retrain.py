"""Train found networks on their own, from scratch or from inherited weights."""

from __future__ import annotations

import argparse
import shlex

from raynas.commands.options import add_number, add_run, add_set, overrides, positive, whole
from raynas.config import MOST_SEEDS

EXAMPLES = "raynas retrain runs/a --seeds 3 --arch best"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_run(parser)
    text = "best, reference, the id of a scored subnet, or an arch file; repeatable (default: best)"
    parser.add_argument("--arch", action="append", metavar="ARCH", help=text)
    text = (
        "weights to begin with: random ones (scratch), inherited from the supernet, or those of the retrained network "
        "(trained), which is then fine-tuned at another image size (default: as the preset says)"
    )
    parser.add_argument("--from", dest="start", choices=["scratch", "inherited", "trained"], help=text)
    text = "height and width of the images (default: the run's; with --from trained the preset's)"
    parser.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    text = "images to train on (default: as the preset says)"
    parser.add_argument("--on", choices=["train", "train+search"], help=text)
    text = "train N times, with seeds 0 to N - 1 (default: as the preset says)"
    parser.add_argument("--seeds", type=whole(1, MOST_SEEDS), metavar="N", help=text)
    text = "number of trainings side by side; 1 trains without Ray (default: one for each CPU)"
    add_number(parser, "--parallel", None, text)
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    """Retrain, print the accuracies and say what comes next."""
    import raynas
    from raynas.api import run_preset
    from raynas.progress.reporter import terminal
    from raynas.reports.lines import retrained_lines
    from raynas.runs.run import Run

    changes = overrides(options)
    run = Run(options.run)
    progress = terminal()
    with progress.doing("retraining"):
        rows = raynas.retrain(
            run,
            options.arch or ["best"],
            changes,
            start=options.start,
            size=options.size,
            seeds=range(options.seeds) if options.seeds else None,
            train_on=options.on,
            parallel=options.parallel,
            progress=progress,
        )
    for line in retrained_lines(rows):
        print(line)
    name = shlex.quote(options.run)
    plan = None if options.size or options.start == "trained" else run_preset(run, changes).retrain
    if plan is not None and plan.finetune is not None and (options.start or plan.start) != "trained":
        same = "".join(f" --arch {shlex.quote(arch)}" for arch in options.arch or [])
        same += f" --seeds {options.seeds}" if options.seeds else ""
        same += f" --on {options.on}" if options.on else ""
        print(f"The preset then fine-tunes at another image size: raynas retrain {name} --from trained{same}")
    print(f"Next: raynas evaluate {name}")
