"""The tables of docs/adapt.md that compare it with other ways to shrink a model, from what adapt.py measured.

python docs/evidence/adapt_tables.py docs/evidence/results             print them
python docs/evidence/adapt_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from functools import partial

from adapt import BUDGETS, MODELS, THREE
from tables import Row, arguments, read, shown, table

EXPERIMENTS = ("shrinking_adapted", "shrinking_pruned", "shrinking_uniform", "long_pruned", "long_scratch")


def at(budget: float, rows: list[Row]) -> float:
    """Accuracy in per cent within a budget."""
    (found,) = [row["accuracy"] for row in rows if row["budget"] == budget]
    return 100 * float(found)


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    rows = [row for experiment in EXPERIMENTS for row in read(results, experiment)]
    measures = {f"{budget:.0%} of the MACs": partial(at, budget) for budget in THREE}
    for model in MODELS:
        of_model = [row for row in rows if row["model"] == model]
        whole = [100 * row["accuracy"] for row in of_model if row["way"] == "the model"]
        print(f"## {model}: {len(whole)} seeds, the model itself {shown(whole, 1)} %")
        ways = list(dict.fromkeys(row["way"] for row in of_model if row["way"] != "the model"))
        for kind in (
            [way for way in ways if way.startswith("no training") or way.endswith("as it is")],
            [way for way in ways if not way.startswith("no training") and not way.endswith("as it is")],
        ):
            table([row for row in of_model if row["budget"] in THREE], "way", kind, measures, digits=1)
        ten = {f"{budget:.0%}": partial(at, budget) for budget in BUDGETS}
        table(of_model, "way", ["adapted"], ten, digits=1)


if __name__ == "__main__":
    main()
