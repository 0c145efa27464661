"""Print the tables of ablations.py.

python docs/evidence/ablations_tables.py docs/evidence/results             print them
python docs/evidence/ablations_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from functools import partial

from ablations import EXPERIMENTS
from tables import Row, arguments, read, table


def percent(rows: list[Row], measure: str) -> float:
    return next(100 * row["value"] for row in rows if row["measure"] == measure)


def main() -> None:
    folder = arguments(__doc__, EXPERIMENTS)
    for experiment in EXPERIMENTS:
        rows = read(folder, experiment)
        for name in dict.fromkeys(row["table"] for row in rows):
            print(f"## {experiment}: {name}\n")
            these = [row for row in rows if row["table"] == name]
            measures = dict.fromkeys(row["measure"] for row in these)
            order = list(dict.fromkeys(row["row"] for row in these))
            table(these, "row", order, {measure: partial(percent, measure=measure) for measure in measures}, digits=1)


if __name__ == "__main__":
    main()
