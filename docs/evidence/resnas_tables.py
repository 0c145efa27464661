"""The tables of docs/vit_resnas.md, from what resnas.py measured.

python docs/evidence/resnas_tables.py docs/evidence/results             print them
python docs/evidence/resnas_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import json
from functools import partial

import numpy as np
from scipy import stats
from tables import Measures, Row, arguments, at, mean, read, table
from vitas_tables import with_truth

EXPERIMENTS = ("reduction", "divergence", "archs", "norm", "resolution")
LEARNT = 2.2
"""A training loss that ten classes guessed at, ln 10 = 2.30, do not reach."""


def gap(rows: list[Row]) -> float:
    """How much better subnets are inside the supernet than extracted, in accuracy."""
    return float(np.mean([row["inside"] - row["accuracy"] for row in rows]))


def diverged(row: Row) -> bool:
    losses = json.loads(row["curve"])
    return row["collapsed"] or not losses or not losses[-1] < LEARNT


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    loss, accuracy = partial(mean, "loss"), partial(mean, "accuracy")
    quality = {"validation loss": loss, "accuracy": accuracy}
    losses: Measures = {"training loss at 10 %": partial(at, 0.1), "at the end": partial(at, 1)}

    print("## Reductions and labels of patches (17, Table 1)")
    table(read(results, "reduction"), "arm", ("plain", "residual", "cutmix", "released"), quality)
    print("## Diverged without the main branch (18), of five")
    rows = read(results, "divergence")
    rates = sorted({row["lr"] for row in rows})
    print(f"| learning rate | {' | '.join(f'{rate:g}' for rate in rates)} |\n|---|{'---|' * len(rates)}")
    for arm in ("plain", "residual"):
        number = [sum(diverged(row) for row in rows if (row["arm"], row["lr"]) == (arm, rate)) for rate in rates]
        print(f"| {arm} | {' | '.join(map(str, number))} |")
    print("\n## Archs of a batch (19, Table 2)")
    truth = {row["network"]: row for row in read(results, "truth") if row["seed"] == 0}
    rows = read(results, "archs")
    counts = (1, 8, 16, 32)
    table([row for row in rows if not row["known"]], "count", counts, {**losses, **quality})
    tau = {"Kendall with truth": partial(with_truth, stats.kendalltau, "accuracy", truth)}
    table([row for row in rows if row["known"]], "count", counts, tau)
    print("## Layer norms that know of masks, or not (20, Figure 6)")
    measures: Measures = {
        "accuracy inside": partial(mean, "inside"),
        "extracted": accuracy,
        "inside less extracted": gap,
    }
    table(read(results, "norm"), "kind", ("masked", "unaware"), measures)
    print("## Larger images (21)")
    arms = ("32", "tuned at 32", "resized", "tuned at 48", "positions forgotten")
    table(read(results, "resolution"), "arm", arms, quality)


if __name__ == "__main__":
    main()
