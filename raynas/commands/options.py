"""Options that several commands share, the types of options, and the call of a public function with them."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from raynas.cluster.resources import MOST_PER_GPU, Resources
from raynas.config import MOST_SEEDS
from raynas.documents import parse_overrides
from raynas.progress.reporter import Reporter, terminal
from raynas.text import shown

PRECISIONS = ("fp32", "bf16", "fp16")


# -- groups of options -------------------------------------------------------------------------------------------------


def add_preset(parser: argparse.ArgumentParser) -> None:
    """Add the preset, the run directory to make from it, and changes to the preset."""
    parser.add_argument("preset", help="a shipped preset, such as digits or autoformer, or a YAML file")
    add_run_to_make(parser)
    add_data(parser)
    add_set(parser)


def add_run_to_make(parser: argparse.ArgumentParser) -> None:
    """Add the run directory to make or to continue."""
    text = "run directory: a path, or a URI such as s3://..."
    parser.add_argument("--run", dest="run_dir", required=True, metavar="DIR", help=text)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run directory to read."""
    parser.add_argument("run", help="run directory: a path, or a URI such as s3://bucket/run")


def add_data(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the data to use in place of the preset's."""
    text = "dataset: digits, mnist5k, clutter, a folder of class folders, Parquet files, a URI, or module:function"
    parser.add_argument("--data", required=required, help=text)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add changes to the preset."""
    text = "change a value of the preset, such as recipe.epochs=3; repeatable"
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help=text)


def add_arch(parser: argparse.ArgumentParser, more: str = "", **options: Any) -> None:
    """Add the arch; `more` says what else may stand for it."""
    text = f"best, the name of a search, reference, the id of a scored subnet, or an arch file{more}"
    parser.add_argument("--arch", help=text, **options)


def add_seeds(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the seeds of trainings, given as their number."""
    parser.add_argument("--seeds", type=_seeds, metavar="N", help=text)


def add_workers(
    parser: argparse.ArgumentParser, default: int | None = None, text: str = "1 on a cluster, elsewhere 0"
) -> None:
    """Add the number of training workers; with a default of None `text` says what is taken then."""
    text = (
        "number of Ray Train workers, or a range such as 2..8 that follows the cluster's nodes; 0 trains in this "
        f"process, without Ray, to the same weights as 1 (default: {text if default is None else '%(default)s'})"
    )
    parser.add_argument("--workers", type=number_or_range, default=default, metavar="N", help=text)
    text = "losses of workers that a training survives in a row, without progress between them (default: 3)"
    parser.add_argument("--max-failures", type=natural, metavar="N", help=text)


def add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the number of scoring actors."""
    text = "number of Ray actors that score subnets; 0 scores without Ray (default: %(default)s)"
    parser.add_argument("--replicas", type=natural, default=2, metavar="N", help=text)


def add_scoring(parser: argparse.ArgumentParser, each: str) -> None:
    """Add the number of scoring actors, also on a GPU, and their CPUs and GPUs; `each` says what else gets these."""
    add_replicas(parser)
    add_cpus_and_gpu(parser, each)
    text = "scoring actors that share a GPU, with --gpu: a number, or fit for as many as its memory holds (default: 1)"
    parser.add_argument("--per-gpu", type=number_or_fit, metavar="N", help=text)


def add_replica(parser: argparse.ArgumentParser, does: str) -> None:
    """Add whether a Ray task works, and its CPUs and GPU; `does` says at what."""
    text = f"1: a Ray task {does}; 0: this process (default: 1 on a cluster and with --cpus or --gpu, else 0)"
    parser.add_argument("--replicas", type=whole(0, 1), metavar="N", help=text)
    add_cpus_and_gpu(parser, "task")


def add_trial_resources(parser: argparse.ArgumentParser) -> None:
    """Add the number of trials side by side, and what each of them gets."""
    text = "number of trials side by side (default: as many as there is room for); with 1 a tuning repeats itself"
    add_number(parser, "--at-a-time", None, text)
    default = "(default: 0, but 1 on a cluster and with --cpus or --gpu)"
    text = f"Ray Train workers of each trial; 0: its own process trains {default}"
    parser.add_argument("--workers", type=number_or_range, metavar="N", help=text)
    text = f"Ray actors that score a trial's subnets; 0: its own process does {default}"
    parser.add_argument("--replicas", type=natural, metavar="N", help=text)
    add_cpus_and_gpu(parser, "trial, or each of its workers and replicas")


def add_cpus_and_gpu(parser: argparse.ArgumentParser, each: str) -> None:
    """Add the CPUs and the use of GPUs; `each` says what gets them."""
    text = f"CPUs, and threads, of each {each} (default: 1)"
    parser.add_argument("--cpus", type=positive, metavar="N", help=text)
    text = f"give one GPU to each {each}"
    parser.add_argument("--gpu", dest="gpus", action="store_const", const=1, help=text)


def add_number(parser: argparse.ArgumentParser, name: str, default: int | None, text: str) -> None:
    """Add a whole number of at least 1; with a default of None the text says what is taken then."""
    said = "" if default is None else " (default: %(default)s)"
    parser.add_argument(name, type=positive, default=default, metavar="N", help=text + said)


def add_figure(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the file of a figure, which can be written, since it is drawn last."""
    parser.add_argument("--figure", type=_figure, metavar="FILE", help=f"{text}: .png, .svg or .pdf")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the device to measure on."""
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")


# -- the call ----------------------------------------------------------------------------------------------------------


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that were given as arguments of the command's public function, whose parameters they name.

    Raises:
        UserError: an assignment is not `KEY=VALUE`, its value is not YAML, or resources are out of range.
    """
    named = {name: value for name, value in vars(options).items() if name != "action" and value is not None}
    if where := {field.name: named.pop(field.name) for field in fields(Resources) if field.name in named}:
        on_ray = all(where.get(name) != 0 for name in ("workers", "replicas"))
        workers = None if on_ray and "workers" in vars(options) else 0
        replicas = int(on_ray and "replicas" in vars(options))
        named["resources"] = Resources(**({"workers": workers, "replicas": replicas} | where))
    for name in {"overrides", "values"} & named.keys():
        named[name] = parse_overrides(named[name])
    return named


@contextmanager
def doing(what: str) -> Iterator[Reporter]:
    """Show a command's work while the block runs; what it prints about the result comes after."""
    progress = terminal()
    with progress.doing(what):
        yield progress


# -- types -------------------------------------------------------------------------------------------------------------


def whole(least: int, most: int = 10**6) -> Callable[[str], int]:
    """Return the type of a whole number from `least` to `most`, both included."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least} and at most {most:,}, not {shown(text)}"
            )
        return int(text)

    return read


natural, positive = whole(0), whole(1)


def number_or_range(text: str) -> int | tuple[int, int]:
    """Read a whole number, or a range of them: 2..8 has both ends."""
    least, dots, most = text.partition("..")
    return (positive(least), positive(most)) if dots else natural(text)


def number_or_fit(text: str) -> int | str:
    """Read the number of replicas that share a GPU."""
    return text if text == "fit" else whole(1, MOST_PER_GPU)(text)


def _figure(text: str) -> str:
    from matplotlib.figure import Figure

    folder = os.path.dirname(text) or "."
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text}: there is no such folder, or it cannot be written to")
    kind = os.path.splitext(text)[1].lower().removeprefix(".")
    if kind not in Figure().canvas.get_supported_filetypes() or os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text}: give a file that ends in .png, .svg or .pdf")
    return text


def _seeds(text: str) -> range:
    return range(whole(1, MOST_SEEDS)(text))


def above_0(text: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value
