"""Print the table of precision.py.

python docs/evidence/precision_tables.py docs/evidence/results             print it
python docs/evidence/precision_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import numpy as np
from tables import Row, arguments, read, tau

from raynas.search.history import FINALISTS

EXPERIMENTS = ("precision",)


def line(family: str, seed: int, rows: list[Row]) -> str:
    """What wins in bf16, and how much worse it is in fp32: alone, and as the best of ten that are scored again."""
    exact, rough = (np.array([row[f"accuracy_{name}"] for row in rows]) for name in ("fp32", "bf16"))
    loss = np.array([row["loss_bf16"] for row in rows])
    macs = np.array([row["macs"] for row in rows])
    order = np.lexsort([loss, macs, -rough])  # ties as in a search
    finalists = order[:FINALISTS]
    best = np.lexsort([np.array([row["loss_fp32"] for row in rows]), macs, -exact])[0]
    again = finalists[np.argmax(exact[finalists])]
    cells = [
        family,
        seed,
        f"{100 * exact[best]:.2f} %",
        "yes" if order[0] == best else "no",
        f"{100 * (exact[best] - exact[order[0]]):.3f}",
        f"{100 * (exact[best] - exact[again]):.3f}",
        f"{tau('accuracy_fp32', 'accuracy_bf16', rows):.3f}",
        f"{100 * np.mean([row['differing'] for row in rows]):.2f} %",
        f"{100 * np.abs(exact - rough).max():.2f}",
        f"{rows[0]['cpu_seconds_bf16'] / rows[0]['cpu_seconds_fp32']:.2f}",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    rows = read(arguments(__doc__, EXPERIMENTS), "precision")
    columns = [
        "family",
        "seed",
        "best in fp32",
        "bf16 has the same winner",
        "regret, points",
        "of the best of ten",
        "Kendall's tau",
        "differing images",
        "largest difference, points",
        "time of bf16 / fp32",
    ]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for family, seed in dict.fromkeys((row["family"], row["seed"]) for row in rows):
        print(line(family, seed, [row for row in rows if (row["family"], row["seed"]) == (family, seed)]))


if __name__ == "__main__":
    main()
