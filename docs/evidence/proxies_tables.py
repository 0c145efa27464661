"""The tables of docs/ranking.md about training-free scores and predictors, from what proxies.py measured.

python docs/evidence/proxies_tables.py docs/evidence/results             print them
python docs/evidence/proxies_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from proxies import FITTED, PREDICTORS, PROXIES, TABLES
from scipy import stats
from tables import Row, arguments, read, shown, tau

EXPERIMENTS = ("truths", "proxies", "predictors")
RESAMPLES = 1000


def taus(rows: Sequence[Row], y: str) -> None:
    """Scores by tables: Kendall's tau with a quality of networks trained alone, then less that of the better cost."""
    print(f"| by, with {y} | {' | '.join(TABLES)} |\n|---|{'---|' * len(TABLES)}")
    sign = -1 if y == "loss" else 1
    columns: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for table in TABLES:
        here = [row for row in rows if row["table"] == table and row["seed"] == 0]
        networks = sorted({row["network"] for row in here})
        by = {(row["proxy"], row["network"]): row for row in here}
        values = np.array([[by[proxy, network]["value"] for network in networks] for proxy in PROXIES])
        truth = sign * np.array([by[PROXIES[0], network][y] for network in networks])
        draws = np.random.default_rng(0).integers(len(networks), size=(RESAMPLES, len(networks)))
        found = np.array([[stats.kendalltau(of[draw], truth[draw]).statistic for of in values] for draw in draws])
        columns[table] = np.array([stats.kendalltau(of, truth).statistic for of in values]), found, truth
    for place, proxy in enumerate(PROXIES):
        cells = [_cell(whole[place], found[:, place]) for whole, found, _ in columns.values()]
        print(f"| `{proxy}` | {' | '.join(cells)} |")
    costs = [PROXIES.index(name) for name in ("params", "macs")]
    for place, proxy in enumerate(PROXIES):
        if place not in costs:
            cells = []
            for whole, found, _ in columns.values():
                best = max(costs, key=lambda cost: whole[cost])
                cells.append(_cell(whole[place] - whole[best], found[:, place] - found[:, best]))
            print(f"| *`{proxy}` less the better cost* | {' | '.join(cells)} |")
    print()
    print("networks:", ", ".join(f"{table} {len(truth)}" for table, (_, _, truth) in columns.items()), "\n")


def seeds(rows: Sequence[Row]) -> None:
    """The least and the largest tau with accuracy of three random initialisations."""
    print(f"| by | {' | '.join(TABLES)} |\n|---|{'---|' * len(TABLES)}")
    for proxy in PROXIES:
        cells = []
        for table in TABLES:
            found = []
            for seed in range(3):
                here = [row for row in rows if (row["table"], row["proxy"], row["seed"]) == (table, proxy, seed)]
                found.append(tau("value", "accuracy", here))
            cells.append(f"{min(found):.2f} to {max(found):.2f}")
        print(f"| `{proxy}` | {' | '.join(cells)} |")
    print()


def _cell(value: float, resampled: np.ndarray) -> str:
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


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
    print("## Three initialisations")
    seeds(rows)
    print("## Predictors")
    learnt(read(results, "predictors"))


if __name__ == "__main__":
    main()
