"""The tables of docs/ranking.md about training-free scores and predictors, from what proxies.py measured.

python docs/evidence/proxies_tables.py docs/evidence/results             print them
python docs/evidence/proxies_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from proxies import ALONE, FITTED, INHERITED, PREDICTORS, PROXIES
from tables import Row, arguments, read, shown, tau

from raynas.correlation import RESAMPLES, kendall

EXPERIMENTS = ("proxies", "predictors")
TABLES = (*ALONE, *INHERITED)
COSTS = ("params", "macs")


def taus(rows: Sequence[Row], y: str) -> None:
    """Scores by tables: Kendall's tau with the networks' quality, then less that of the better cost, paired."""
    print(f"| by, with {y} | {' | '.join(TABLES)} |\n|---|{'---|' * len(TABLES)}")
    sign, found, networks = -1 if y == "loss" else 1, dict[str, np.ndarray](), dict[str, int]()
    for table in TABLES:
        here = [row for row in rows if row["table"] == table and row["seed"] == 0]
        by = {name: {row["network"]: row for row in here if row["proxy"] == name} for name in PROXIES}
        names = sorted(by[PROXIES[0]])
        draws = np.random.default_rng(0).integers(len(names), size=(RESAMPLES, len(names)))
        draws = np.concatenate([np.arange(len(names))[None], draws])  # first all of them, once
        truth = np.array([sign * by[PROXIES[0]][name][y] for name in names])
        values = [np.array([each[name]["value"] for name in names]) for each in by.values()]
        found[table], networks[table] = np.array([kendall(each, truth, draws) for each in values]), len(names)
    for place, proxy in enumerate(PROXIES):
        print(f"| `{proxy}` | {' | '.join(_cell(each[place]) for each in found.values())} |")
    for place, proxy in enumerate(PROXIES):
        if proxy not in COSTS:
            less = [
                each[place] - max((each[PROXIES.index(c)] for c in COSTS), key=lambda e: e[0])
                for each in found.values()
            ]
            print(f"| *`{proxy}` less the better cost* | {' | '.join(map(_cell, less))} |")
    print("\nnetworks:", ", ".join(f"{table} {n}" for table, n in networks.items()), "\n")


def seeds(rows: Sequence[Row]) -> None:
    """The least and the largest tau with accuracy of the random initialisations."""
    print(f"| by | {' | '.join(TABLES)} |\n|---|{'---|' * len(TABLES)}")
    for proxy in PROXIES:
        cells = []
        for table in TABLES:
            here = [row for row in rows if (row["table"], row["proxy"]) == (table, proxy)]
            by_seed = [[row for row in here if row["seed"] == seed] for seed in sorted({row["seed"] for row in here})]
            found = [tau("value", "accuracy", each) for each in by_seed]
            cells.append(f"{min(found):.2f} to {max(found):.2f}")
        print(f"| `{proxy}` | {' | '.join(cells)} |")
    print()


def _cell(found: np.ndarray) -> str:
    """The first value, and the 95 % interval of the others."""
    low, high = np.percentile(found[1:], [2.5, 97.5])
    return f"{found[0]:.2f} [{low:.2f}, {high:.2f}]"


def learnt(rows: Sequence[Row]) -> None:
    """Predictors by number of accuracies that they were fitted to: tau on the others, mean and interval over seeds."""
    cells = [(of, fitted) for of, sizes in FITTED.items() for fitted in sizes]
    print(f"| | {' | '.join(f'{of}, fitted to {fitted}' for of, fitted in cells)} |\n|---|{'---|' * len(cells)}")

    def found(predictor: str, cell: tuple[str, int]) -> list[Row]:
        return [row for row in rows if (row["predictor"], row["of"], row["fitted"]) == (predictor, *cell)]

    for predictor in PREDICTORS:
        values = [shown([row["kendall"] for row in found(predictor, cell)]) for cell in cells]
        print(f"| `{predictor}` | {' | '.join(values)} |")
    print(f"| MACs | {' | '.join(shown([row['by_macs'] for row in found('forest', cell)]) for cell in cells)} |")
    for predictor in PREDICTORS[1:]:
        less = []
        for cell in cells:
            of = {row["seed"]: row["kendall"] for row in found("forest", cell)}
            less.append(shown([row["kendall"] - of[row["seed"]] for row in found(predictor, cell)]))
        print(f"| *`{predictor}` less `forest`* | {' | '.join(less)} |")
    print()


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    rows = read(results, "proxies")
    for quality in ("accuracy", "loss"):
        print(f"## Training-free scores and {quality}")
        taus(rows, quality)
    print("## Several initialisations")
    seeds(rows)
    print("## Predictors")
    learnt(read(results, "predictors"))


if __name__ == "__main__":
    main()
