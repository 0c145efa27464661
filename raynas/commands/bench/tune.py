"""Compare the samplers of tuning on functions whose optima are known."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number, doing
from raynas.text import columns

SAMPLERS = ("random", "qmc", "tpe", "gp", "cmaes", "nsgaii")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_number(parser, "--seeds", 20, "number of studies of each sampler and function")
    parser.add_argument(
        "--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS, help="default: all; gp takes longest"
    )


def run(options: argparse.Namespace) -> None:
    from raynas.bench.measured import over_seeds
    from raynas.bench.tune import PROBLEMS, bench_tune

    with doing("tuning") as progress:
        regret = bench_tune(options.samplers, seeds=options.seeds, progress=progress)
    print("distance from the optimum, mean over seeds and 95 % interval; below it random minus sampler, paired by seed")
    table = [["", *(f"{name} ({each.trials} trials)" for name, each in PROBLEMS.items())]]
    for sampler in options.samplers:
        table.append([sampler, *(over_seeds(regret[problem, sampler], 4) for problem in PROBLEMS)])
        if sampler != "random" and "random" in options.samplers:
            gains = [regret[problem, "random"] - regret[problem, sampler] for problem in PROBLEMS]
            table.append(["", *(over_seeds(gain, 4) for gain in gains)])
    print(*columns(table), sep="\n")
