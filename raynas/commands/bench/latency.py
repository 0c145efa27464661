"""Time subnets alone, one after the other, as a search by latency does."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from raynas.commands.options import PRECISIONS, above_0, add_device, add_number, doing
from raynas.errors import ConfigError, UserError

if TYPE_CHECKING:
    from raynas.latency.timing import Conditions
    from raynas.progress.reporter import Progress
    from raynas.results.schemas import Row
    from raynas.runs.run import Run
    from raynas.space import Arch

EXAMPLES = "raynas bench latency autoformer/tiny --device cuda --batch-size 64 --dtype fp16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = (
        "an arch, or a space for its smallest and largest arch: shipped or a file; with --run also best or the id of "
        "a scored subnet"
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=text)
    add_device(parser)
    add_number(parser, "--batch-size", 1, "images of one pass")
    parser.add_argument("--dtype", default="fp32", choices=PRECISIONS, help="precision (default: %(default)s)")
    add_number(parser, "--threads", 1, "number of torch threads")
    text = "duration of each timing (default: %(default)s)"
    parser.add_argument("--seconds", type=above_0, default=0.3, metavar="S", help=text)
    text = "run directory to keep the timings in; what it has is not timed again"
    parser.add_argument("--run", metavar="DIR", help=text)
    text = "time in a Ray actor with this resource, such as GPU=1 or jetson=1; repeatable (default: in this process)"
    parser.add_argument("--resource", dest="resources", action=_Resource, metavar="NAME=AMOUNT", help=text)


def run(options: argparse.Namespace) -> None:
    from raynas.config import validate
    from raynas.documents import Document
    from raynas.latency.rows import on_of
    from raynas.latency.timing import Conditions
    from raynas.runs.run import Run

    run = None if options.run is None else Run(options.run)
    given = {name: getattr(options, name) for name in Conditions.model_fields}
    conditions = validate(Conditions, Document(given, "raynas bench latency"))
    archs = {label: arch for name in options.names for label, arch in _archs_to_time(run, name).items()}
    with doing("timing") as progress:
        rows = _time(run, list(archs.values()), conditions, options.resources, progress)
    print(f"on {on_of(rows[0])}")
    print(f"{'subnet':<40}{'MACs':>16}{'median ms':>12}{'quartiles ms':>20}{'images/s':>12}{'passes':>8}")
    for name, row in zip(archs, rows, strict=True):
        if row["status"] == "ok":
            spread = f"{row['ms_q1']:.3f} to {row['ms_q3']:.3f}"
            rest = f"{row['ms']:>12.3f}{spread:>20}{row['images_per_s']:>12,.1f}{row['passes']:>8}"
        else:
            rest = f"  {row['reason']}"
        print(f"{name:<40}{row['macs']:>16,}{rest}")


def _time(
    run: Run | None, archs: list[Arch], conditions: Conditions, resources: dict[str, float] | None, progress: Progress
) -> list[Row]:
    """Time subnets; with a run, in its name and into its tables."""
    from raynas.latency.measured import time_archs
    from raynas.phases.phase import phase
    from raynas.runs.networks import check_images

    if run is None:
        return time_archs(None, archs, conditions, resources, progress=progress)
    if run.has_space:
        check_images(archs, run.space)
    attempt = partial(phase, run, "timing", cluster=resources is not None, progress=progress)
    with run.lock():
        return time_archs(run.store, archs, conditions, resources, progress=progress, attempt=attempt)


def _archs_to_time(run: Run | None, name: str) -> dict[str, Arch]:
    """Return the archs of a name by their labels: one arch, or the smallest and the largest of a space."""
    from raynas.space import load_arch, load_space
    from raynas.space.load import describes_arch

    try:
        one = describes_arch(name)
    except ConfigError:  # not a file: the search for an arch by name reports what is missing
        one = True
    if one:
        return {name: load_arch(name) if run is None else run.arch(name)}
    space = load_space(name)
    if run is not None:
        own = run.space
        space = space.with_input(own.input_size, own.channels, own.classes)
    return {f"{name}, smallest": space.smallest(), f"{name}, largest": space.largest()}


class _Resource(argparse.Action):
    """Collect NAME=AMOUNT into one mapping."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        name, _, amount = value.partition("=")
        try:
            setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: above_0(amount)})
        except argparse.ArgumentTypeError:
            raise UserError(f"{option} {value}: give NAME=AMOUNT, such as GPU=1") from None
