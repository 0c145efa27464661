"""Print the table of tuning.py.

python docs/evidence/tuning_tables.py docs/evidence/results             print it
python docs/evidence/tuning_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from functools import partial

from tables import arguments, mean, read, table
from tuning import EXPERIMENTS

ARMS = ("as it is", "tuned", "longer", "larger")
UNITS = {"searched": 100, "retrained": 100, "tested": 100, "macs": 1e-6, "epochs": 1, "macs_spent": 1e-12}


def main() -> None:
    rows = read(arguments(__doc__, EXPERIMENTS), "tuning")
    scaled = [{**row, **{name: factor * row[name] for name, factor in UNITS.items()}} for row in rows]
    table(scaled, "arm", ARMS, {name: partial(mean, name) for name in UNITS}, digits=2)
    for row in rows:
        if row["values"] is not None:
            print(f"seed {row['seed']}: {row['values']}")


if __name__ == "__main__":
    main()
