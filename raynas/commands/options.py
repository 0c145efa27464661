"""What the options of the `raynas` command are made of."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from raynas.errors import UserError
from raynas.text import nearest, shown


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other mistake is told."""

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message):
            known = re.findall(r"[\w+-]+", wrong[2])
            message = f"no such choice: {wrong[1]!r}{nearest(wrong[1], known)}"
        raise UserError(f"{message} (see {self.prog} --help)")


def add_verb(verbs: Any, name: str, function: Any, summary: str, example: str = "") -> argparse.ArgumentParser:
    """One command; its help shows the example."""
    parser = verbs.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:\n  {example}" if example else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(verb=function)
    return parser


def add_procedure(parser: argparse.ArgumentParser) -> None:
    """What carries out a preset."""
    parser.add_argument("preset", help="a shipped preset (digits, autoformer) or a YAML file")
    parser.add_argument("--run", required=True, metavar="DIR", help="run directory: a path, or a URI such as s3://...")
    add_data(parser)
    add_workers(parser)
    add_set(parser)


def add_workers(parser: argparse.ArgumentParser, default: int = 1) -> None:
    """Where training computes."""
    text = "Ray Train workers; 0: without Ray (default: %(default)s)"
    parser.add_argument("--workers", type=natural, default=default, metavar="N", help=text)


def add_replicas(parser: argparse.ArgumentParser) -> None:
    """Where scoring computes."""
    text = "scorers as Ray actors; 0: without Ray (default: %(default)s)"
    parser.add_argument("--replicas", type=natural, default=2, metavar="N", help=text)


def add_run(parser: argparse.ArgumentParser) -> None:
    """The run directory to read."""
    parser.add_argument("run", help="run directory: a path, or a URI such as s3://bucket/run")


def add_data(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """The data, instead of the preset's."""
    text = "digits, mnist5k, a folder of class folders, Parquet files, a URI, or module:function"
    parser.add_argument("--data", required=required, help=text)


def add_arch(parser: argparse.ArgumentParser, default: str | None, more: str = "") -> None:
    """The arch; `more` says what else may stand for it."""
    text = f"best, reference, the id of a scored subnet, or an arch file{more}"
    parser.add_argument("--arch", default=default, help=text)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Values of the preset to change."""
    text = "change a value of the preset, such as recipe.epochs=3; repeatable"
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE", help=text)


class Resource(argparse.Action):
    """Collects NAME=AMOUNT into one mapping."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        name, _, amount = value.partition("=")
        try:
            setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: above_0(amount)})
        except argparse.ArgumentTypeError:
            raise UserError(f"{option} {value}: give NAME=AMOUNT, such as GPU=1") from None


def whole(least: int, most: int = 10**6) -> Callable[[str], int]:
    """The type of an option that is a whole number within bounds, both included."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least} and at most {most:,}, not {shown(text)}"
            )
        return int(text)

    return read


natural, positive = whole(0), whole(1)


def from_0(text: str) -> int:
    """A whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text!r}")
    return int(text)


def above_0(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not {shown(text)}")
    return value


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    if (value := above_0(text)) > 1:
        raise argparse.ArgumentTypeError(f"must be a share, above 0 and at most 1, not {shown(text)}")
    return value


def name_of_search(text: str) -> str:
    """The name of a search, which is a folder's as well."""
    if not text.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"must be of letters, digits, - and _, not {shown(text)}")
    return text
