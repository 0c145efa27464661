"""Options that several commands share, and the types of options."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

from raynas.cluster.resources import Resources
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
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the run directory to read."""
    parser.add_argument("run", help="run directory: a path, or a URI such as s3://bucket/run")


def add_data(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Add the data to use in place of the preset's."""
    text = "dataset: digits, mnist5k, a folder of class folders, Parquet files, a URI, or module:function"
    parser.add_argument("--data", required=required, help=text)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add changes to the preset."""
    text = "change a value of the preset, such as recipe.epochs=3; repeatable"
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help=text)


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """Return the changes to the preset by dotted key, as the public functions take them.

    Raises:
        ConfigError: one is not `KEY=VALUE`, or its value is not YAML.
    """
    from raynas.presets.preset import parse_overrides

    return parse_overrides(options.changes)


def add_arch(parser: argparse.ArgumentParser, default: str | None, more: str = "") -> None:
    """Add the arch; `more` says what else may stand for it."""
    text = f"best, reference, the id of a scored subnet, or an arch file{more}"
    parser.add_argument("--arch", default=default, help=text)


def add_workers(parser: argparse.ArgumentParser, default: int = 1) -> None:
    """Add the number of training workers."""
    text = "number of Ray Train workers; 0 trains without Ray (default: %(default)s)"
    parser.add_argument("--workers", type=natural, default=default, metavar="N", help=text)


def add_replicas(parser: argparse.ArgumentParser) -> None:
    """Add the number of scoring actors."""
    text = "number of Ray actors that score subnets; 0 scores without Ray (default: %(default)s)"
    parser.add_argument("--replicas", type=natural, default=2, metavar="N", help=text)


def add_gpu(parser: argparse.ArgumentParser, each: str) -> None:
    """Add the use of GPUs; `each` says what gets one."""
    parser.add_argument("--gpu", action="store_true", help=f"give one GPU to each {each}")


def resources(options: argparse.Namespace) -> Resources:
    """Return the workers, replicas and GPUs of a command; 0 where it has no such option."""
    named = vars(options)
    return Resources(named.get("workers", 0), named.get("replicas", 0), gpus=int(named.get("gpu", False)))


def add_number(parser: argparse.ArgumentParser, name: str, default: int | None, text: str) -> None:
    """Add a whole number of at least 1; with a default of None the text says what is taken then."""
    said = "" if default is None else " (default: %(default)s)"
    parser.add_argument(name, type=positive, default=default, metavar="N", help=text + said)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the device to measure on."""
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1 (default: %(default)s)")


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


def above_0(text: str) -> float:
    """Read a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value
