"""Train found networks on their own, from scratch or from inherited weights."""

from __future__ import annotations

import argparse
import shlex

import raynas
from raynas.commands.options import (
    add_arch,
    add_cpus_and_gpu,
    add_number,
    add_run,
    add_seeds,
    add_set,
    add_workers,
    doing,
    given,
    positive,
)

EXAMPLES = """\
raynas retrain runs/a --seeds 3 --arch best
raynas retrain my_network --data /data/flowers --run runs/flowers --size 320"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_arch(parser, "; repeatable (default: best)", dest="archs", action="append", metavar="ARCH")
    text = (
        "weights to begin with: random ones (scratch), inherited from the supernet, or those of the retrained network "
        "(trained), which is then fine-tuned at another image size (default: as the preset says)"
    )
    parser.add_argument("--from", dest="start", choices=["scratch", "inherited", "trained"], help=text)
    text = "height and width of the images (default: the run's; with --from trained the preset's)"
    parser.add_argument("--size", type=positive, metavar="PIXELS", help=text)
    text = "other images than the run's: the network is transferred to them, in a run of its own (--run)"
    parser.add_argument("--data", help=text)
    parser.add_argument("--run", dest="run_dir", metavar="DIR", help="with --data: the run directory to write")
    parser.add_argument("--preset", help="with --data: the settings (default: transfer)")
    text = "with --data: a file with a timm model's weights, instead of a download"
    parser.add_argument("--weights", metavar="FILE", help=text)
    text = "images to train on (default: as the preset says)"
    parser.add_argument("--on", dest="train_on", choices=["train", "train+search"], help=text)
    add_seeds(parser, "train N times, with seeds 0 to N - 1 (default: as the preset says)")
    add_number(parser, "--parallel", None, "number of trainings side by side (default: as many as there is room for)")
    add_workers(
        parser,
        None,
        "1 for each network on a cluster, or if there are several; this process trains a single one, or one after the "
        "other with --parallel 1",
    )
    add_cpus_and_gpu(parser, "worker, or this process")
    add_set(parser)


def run(options: argparse.Namespace) -> None:
    """Retrain, print the accuracies and say what comes next."""
    with doing("retraining") as progress:
        rows = raynas.retrain(**(arguments := given(options)), progress=progress)
    from raynas.presets.preset import override
    from raynas.reports.lines import retrained_lines

    print("\n".join(retrained_lines(rows)))
    name = shlex.quote(options.run_dir or options.run)
    finetune = None
    if options.size is None and options.start != "trained":
        run = raynas.open_run(options.run_dir or options.run)
        finetune = override(run.preset, arguments["overrides"]).retrain.finetune
    if finetune is not None:
        same = "".join(f" --arch {shlex.quote(arch)}" for arch in options.archs or [])
        same += f" --seeds {len(options.seeds)}" if options.seeds else ""
        same += f" --on {options.train_on}" if options.train_on else ""
        print(f"The preset then fine-tunes at another image size: raynas retrain {name} --from trained{same}")
    print(f"Next: raynas evaluate {name}")
