"""The tables of docs/adapt.md that compare it with other ways to shrink a model, from what adapt.py measured.

python docs/evidence/adapt_tables.py docs/evidence/results             print them
python docs/evidence/adapt_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from functools import partial

from adapt import BUDGETS, EPOCHS, MODELS, THREE
from tables import Row, arguments, read, shown, table

EXPERIMENTS = ("shrinking_adapted", "shrinking_pruned", "shrinking_uniform", "long_pruned", "long_scratch")

NONE, TENTH, THIRD, ALL = EPOCHS
UNTRAINED = (
    f"Torch-Pruning, {NONE}",
    f"uniform, {NONE}",
    "no training, order by importance",
    "no training, order random",
)
THREE_BUDGETS = (f"Torch-Pruning, {THIRD}", "adapted, fine-tuned", f"uniform, {THIRD}")
TEN_BUDGETS = (f"Torch-Pruning, {TENTH}", "adapted")
EACH_BUDGET = (f"Torch-Pruning, {ALL}", "adapted, fine-tuned", f"from scratch, {ALL}")
"""Ways to shrink with as much compute as each other for so many budgets; differences are from the first."""


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
        if not whole:
            continue
        print(f"## {model}: {len(whole)} seeds, the model itself {shown(whole, 1)} %")
        for ways in (UNTRAINED, THREE_BUDGETS, TEN_BUDGETS, EACH_BUDGET):
            if not any(row["way"] == ways[0] for row in of_model):
                continue
            table([row for row in of_model if row["budget"] in THREE], "way", ways, measures, digits=1)
        ten = {f"{budget:.0%}": partial(at, budget) for budget in BUDGETS}
        table(of_model, "way", ["adapted"], ten, digits=1)


if __name__ == "__main__":
    main()
