"""Print the table of truths_supernets.py.

python docs/evidence/truths_supernets_tables.py docs/evidence/results             print it
python docs/evidence/truths_supernets_tables.py docs/evidence/results --pack OUT  first put the files of OUT together
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from tables import Row, arguments, mean, read, table
from truths_supernets import EXPERIMENTS, FAMILY, RECIPES

from raynas.bench.truths import load_truth

THIRDS = 3
"""Ranges of MACs, of equally many networks, within which they are ranked, too."""


def main() -> None:
    results, truth = arguments(__doc__, EXPERIMENTS), load_truth(FAMILY)
    alone = dict(zip([arch.network_id for arch in truth.archs], truth.accuracies(split="test").tolist(), strict=True))
    rows = [{**row, "alone": alone[row["network"]]} for row in read(results, "ranking") if row["network"] in alone]
    edges = np.quantile(truth.macs, np.arange(1, THIRDS) / THIRDS)

    def tau(rows: list[Row]) -> float:
        return float(stats.kendalltau([row["accuracy"] for row in rows], [row["alone"] for row in rows]).statistic)

    def within(rows: list[Row]) -> float:
        third = np.searchsorted(edges, [row["macs"] for row in rows])
        return float(np.mean([tau([row for row, k in zip(rows, third, strict=True) if k == n]) for n in range(THIRDS)]))

    print(f"{len(alone)} networks\n")
    measures = {
        "tau": tau,
        "tau within a third of the MACs": within,
        "mean accuracy of the subnets": lambda rows: mean("accuracy", rows),
        "CPU minutes": lambda rows: mean("cpu_seconds", rows) / 60,
    }
    table(rows, "recipe", [*RECIPES], measures)


if __name__ == "__main__":
    main()
