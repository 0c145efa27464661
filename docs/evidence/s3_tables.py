"""The tables of docs/space_evolution.md, from what s3.py measured.

python docs/evidence/s3_tables.py docs/evidence/results             print them
python docs/evidence/s3_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from s3 import EXPERIMENTS, HAND_MADE, LIMITS, LONG, LONGER, SHORT, SUPERNET
from scipy import stats
from tables import Row, arguments, cells, mean, read, shown, table

ROUNDS = 2000


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    for experiment, epochs in {"evolved": SUPERNET["epochs"], "evolved36": LONG}.items():
        rows = read(results, experiment)
        for family in LIMITS:
            print(f"## From a poor space, {family}, supernets of {epochs} epochs (14, Figure 6 and Table 5)")
            spaces_that_evolved([row for row in rows if row["family"] == family])
    for experiment, epochs in {"quality": SHORT["epochs"], "quality36": LONG}.items():
        print(f"## Whether E-T errors rank spaces, supernets of {epochs} epochs (15)")
        ranking(read(results, experiment), read(results, "alone"))
    print("## How far queries look, pixels (12)")
    rows = read(results, "distance")
    for family in LIMITS:
        distances([row for row in rows if row["family"] == family], family)


def spaces_that_evolved(rows: list[Row]) -> None:
    """Spaces A, B and C of one family, and A with all of the compute."""
    spaces = ("A", "B", "C", LONGER)
    quality = {"E-T error": "error", "mean error": "mean", "top tier": "top"}
    table(rows, "space", spaces, {name: partial(mean, column) for name, column in quality.items()})
    print("The best subnet within the limit")
    best = {"inherited": "inherited_error", "alone": "alone_error", "alone, test": "test_error"}
    table(rows, "space", spaces, {name: partial(mean, column) for name, column in best.items()})
    print("What they are")
    measures: dict[str, Callable[[list[Row]], float]] = {
        "epochs": partial(mean, "epochs"),
        "MACs of scored subnets, thousands": thousands("mean_macs"),
        "of the best": thousands("best_macs"),
    }
    table(rows, "space", spaces, measures, digits=0)
    for row in rows:
        if row["seed"] == 0 and row["space"] != LONGER:
            print(f"- {row['space']} (seed 0): `{json.dumps(json.loads(row['definition'])['dimensions'])}`")
    print()


def thousands(column: str) -> Callable[[list[Row]], float]:
    return lambda rows: mean(column, rows) / 1000


def ranking(quality: list[Row], alone: list[Row]) -> None:
    """Spaces by E-T error and by their networks trained alone, and Kendall's tau between the two."""
    scored, trained = cells(quality, "space", list(HAND_MADE)), cells(alone, "space", list(HAND_MADE))
    names = [name for name in scored if name in trained]
    if len(names) < 3:
        print("(not measured)\n")
        return
    errors = {name: [mean("error", rows) for rows in scored[name].values()] for name in names}
    networks = {name: [1 - row["accuracy"] for rows in trained[name].values() for row in rows] for name in names}
    print("| space | E-T error | median error from scratch | least |\n|---|---|---|---|")
    for name in sorted(names, key=lambda name: np.mean(errors[name])):
        print(f"| {name} | {shown(errors[name])} | {np.median(networks[name]):.3f} | {min(networks[name]):.3f} |")
    measures: dict[str, Callable[..., float]] = {"median": np.median, "least": np.min}
    for what, measure in measures.items():
        tau = stats.kendalltau([np.mean(errors[name]) for name in names], [measure(networks[name]) for name in names])
        low, high = interval([errors[name] for name in names], [networks[name] for name in names], measure)
        print(f"tau with the {what}: {tau.statistic:.2f} ({low:.2f} to {high:.2f}), p = {tau.pvalue:.3f}")
    print()


def interval(
    errors: Sequence[Sequence[float]], networks: Sequence[Sequence[float]], measure: Callable[..., float]
) -> tuple[float, float]:
    """95 % interval of tau over other supernets and networks of the same spaces, by the bootstrap over both."""
    rng = np.random.default_rng(0)
    drawn = [
        stats.kendalltau(
            [np.mean(rng.choice(each, len(each))) for each in errors],
            [measure(rng.choice(each, len(each))) for each in networks],
        ).statistic
        for _ in range(ROUNDS)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return float(low), float(high)


def distances(rows: list[Row], family: str) -> None:
    """Mean attention distance by block."""
    if not rows:
        print("(not measured)\n")
        return
    blocks = sorted({row["block"] for row in rows})
    kinds = {"trained": "trained", "untrained": "untrained", "anywhere": "if it looked everywhere alike"}
    print(f"| {family}, block | {' | '.join(str(block + 1) for block in blocks)} |\n|---|{'---|' * len(blocks)}")
    for kind, name in kinds.items():
        found = [[row["pixels"] for row in rows if (row["kind"], row["block"]) == (kind, block)] for block in blocks]
        print(f"| {name} | {' | '.join(shown(each, 2) for each in found)} |")
    print()


if __name__ == "__main__":
    main()
