"""Time random archs within narrow windows of a cost."""

from __future__ import annotations

import argparse

from raynas.commands.options import above_0, add_number, doing
from raynas.text import columns, shown

EXAMPLES = "raynas bench window vitas/twins_small --shares 0.001 0.0001"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("space", help="a shipped space, or a YAML file")
    parser.add_argument("--cost", choices=("macs", "params"), default="macs", help="cost (default: %(default)s)")
    text = "shares of all archs that windows hold; each window begins at the median (default: 0.01 0.001 0.0001)"
    shares = (1e-2, 1e-3, 1e-4)
    parser.add_argument("--shares", nargs="+", type=_share, default=shares, metavar="SHARE", help=text)
    add_number(parser, "--draws", 2000, "number of archs drawn from each window")
    text = "draw uniformly over the choices of each dimension, or over all archs (default: %(default)s)"
    parser.add_argument("--uniform-over", choices=("dimensions", "archs"), default="dimensions", help=text)


def run(options: argparse.Namespace) -> None:
    from raynas.bench.window import bench_window

    with doing("timing") as progress:
        given = (options.space, options.cost, options.shares, options.draws, options.uniform_over)
        timings = bench_window(*given, progress)
    rows = [[f"{options.cost} window", "holds", "set-up s", "accepted", "ms/arch", "rejection"]]
    for this in timings:
        times = [f"{1000 * this.each:.3f}", f"{1000 * this.rejection:.3g}"] if this.held else ["empty"]
        held = [f"{this.held:.2g}", f"{this.setup:.3f}", f"{this.accepted:.1%}"]
        rows.append([f"[{this.low:.0f}, {this.high:.0f}]", *held, *times])
    print(*columns(rows), sep="\n")


def _share(text: str) -> float:
    """Read a number above 0 and at most 1."""
    if (value := above_0(text)) > 1:
        raise argparse.ArgumentTypeError(f"must be a share, above 0 and at most 1, not {shown(text)}")
    return value
