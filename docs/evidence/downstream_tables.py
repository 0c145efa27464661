"""The table of docs/downstream.md on found and hand-designed backbones, from what downstream.py measured.

python docs/evidence/downstream_tables.py docs/evidence/results             print it
python docs/evidence/downstream_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from functools import partial

from downstream import ARMS, EXPERIMENTS
from tables import arguments, mean, read, table

MEASURES = {"segment": ("accuracy", "miou"), "detect": ("accuracy", "map", "map50")}
COSTS = ("digits_macs", "backbone_macs", "backbone_params")


def main() -> None:
    rows = read(arguments(__doc__, EXPERIMENTS), "downstream")
    for task, measures in MEASURES.items():
        print(f"## {task}")
        of_task = [row for row in rows if row["task"] == task]
        table(of_task, "arm", ARMS, {name: partial(mean, name) for name in measures})
    print("## Costs")
    table(rows, "arm", ARMS, {name: partial(mean, name) for name in COSTS}, digits=0)


if __name__ == "__main__":
    main()
