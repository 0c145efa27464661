"""Compare search algorithms on 4,000 subnets whose scores are known."""

from __future__ import annotations

import argparse

from raynas.commands.options import above_0, add_figure, add_number, doing
from raynas.text import columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "budget in MACs (default: 1e6)"
    parser.add_argument("--macs", type=above_0, default=1e6, metavar="N", help=text)
    add_number(parser, "--evaluations", 400, "number of evaluations of each search")
    add_number(parser, "--seeds", 20, "number of searches of each algorithm")
    add_figure(parser, "draw regret against evaluations into this file")


def run(options: argparse.Namespace) -> None:
    from raynas.bench.measured import over_seeds
    from raynas.bench.search import bench_search

    with doing("searching") as progress:
        found = bench_search(options.macs, options.evaluations, options.seeds, progress=progress)
    places = [n for n in (50, 100, 200, 400, 800, 1600) if n <= next(iter(found.values())).shape[1]]
    print("accuracy below the best there is, mean over seeds and 95 % interval, after so many subnets")
    rows = [[name, *(over_seeds(100 * regret[:, n - 1], 2) for n in places)] for name, regret in found.items()]
    print(*columns([["", *map(str, places)], *rows]), sep="\n")
    if options.figure:
        from raynas.figures import regret

        regret(found).savefig(options.figure, dpi=160)
        print(f"Figure: {options.figure}")
