"""Compare the samplers of tuning on functions whose optima are known."""

from __future__ import annotations

import argparse

from raynas.commands.options import add_number, doing

SAMPLERS = ("random", "qmc", "tpe", "gp", "cmaes", "nsgaii")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_number(parser, "--seeds", 20, "number of studies of each sampler and function")
    parser.add_argument(
        "--samplers", nargs="+", choices=SAMPLERS, default=SAMPLERS, help="default: all; gp takes longest"
    )


def run(options: argparse.Namespace) -> None:
    """Run the studies and print a table."""
    from raynas.bench.tune import PROBLEMS, bench_tune
    from raynas.comparison import mean_interval

    with doing("tuning") as progress:
        found = bench_tune(options.samplers, seeds=options.seeds, progress=progress)
    regret = {(each.problem, each.sampler): each.regret for each in found}
    print("distance from the optimum, mean over seeds and 95 % interval; below it random minus sampler, paired by seed")
    print(f"{'':<10}" + "".join(f"{f'{name} ({each.trials} trials)':>26}" for name, each in PROBLEMS.items()))
    for sampler in options.samplers:
        rows = [[regret[problem, sampler] for problem in PROBLEMS]]
        if sampler != "random" and "random" in options.samplers:
            rows.append([regret[problem, "random"] - regret[problem, sampler] for problem in PROBLEMS])
        for name, row in zip((sampler, ""), rows, strict=False):
            spreads = [mean_interval(values.tolist()) for values in row]
            cells = [f"{mean:.4f}" if half is None else f"{mean:.4f} ± {half:.4f}" for mean, half in spreads]
            print(f"{name:<10}" + "".join(f"{cell:>26}" for cell in cells))
