"""The tables of docs/nasvit.md, from what nasvit.py measured.

python docs/evidence/nasvit_tables.py docs/evidence/results             print them
python docs/evidence/nasvit_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import json
from functools import partial

import numpy as np
from scipy import stats
from tables import Measures, Row, arguments, mean, read, table, tau

EXPERIMENTS = ("supernets", "recipes", "scratch", "search")
TOP = 50
BUDGETS = 20

Arms = dict[str, tuple[str, str, str]]

POLICIES: Arms = {
    "plain": ("unscaled", "alpha", "sum"),
    "factors": ("hybrid", "alpha", "sum"),
    "projection": ("unscaled", "alpha", "subnets"),
    "factors, projection": ("hybrid", "alpha", "subnets"),
    "factors, the others projected": ("hybrid", "alpha", "largest"),
}
NETWORKS: Arms = {"CNN": ("cnn", "alpha", "sum"), "hybrid": ("hybrid", "alpha", "sum")}
DIVERGENCES: Arms = {
    "KL": ("cnn", "kl", "sum"),
    "KL, projection": ("cnn", "kl", "subnets"),
    "alpha": ("cnn", "alpha", "sum"),
    "alpha, projection": ("cnn", "alpha", "subnets"),
}


def of_arms(rows: list[Row], arms: Arms) -> list[Row]:
    """The rows of some supernets, by what they are called here."""
    names = {arm: name for name, arm in arms.items()}
    keys = [(row["kind"], row["objective"], row["gradients"]) for row in rows]
    return [{**row, "arm": names[key]} for row, key in zip(rows, keys, strict=True) if key in names]


def of_role(column: str, role: str, rows: list[Row]) -> float:
    return mean(column, [row for row in rows if row["role"] == role])


def conflict(part: int, parts: int, rows: list[Row]) -> float:
    """The mean conflict ratio of one of equal parts of training."""
    return float(np.mean(np.array_split(json.loads(rows[0]["conflicts"]), parts)[part]))


def regret(rows: list[Row]) -> float:
    """By how much the best of those predicted best falls short of the best."""
    best = sorted(rows, key=lambda row: -row["predicted"])[:TOP]
    return max(row["accuracy"] for row in rows) - max(row["accuracy"] for row in best)


def error(rows: list[Row]) -> float:
    return float(np.sqrt(np.mean([(row["predicted"] - row["accuracy"]) ** 2 for row in rows])))


def spearman(x: str, y: str, rows: list[Row]) -> float:
    return float(stats.spearmanr([row[x] for row in rows], [row[y] for row in rows]).statistic)


def at_equal(cost: str, both: list[Row], rows: list[Row]) -> float:
    """The best accuracy of a front within a budget: the mean over budgets that both fronts of its seed can meet."""
    of = [row for row in both if row["seed"] == rows[0]["seed"]]
    least = max(min(row[cost] for row in of if row["goal"] == goal) for goal in ("macs", "latency"))
    budgets = np.linspace(least, max(row[cost] for row in of), BUDGETS)
    return float(np.mean([max(row["accuracy"] for row in rows if row[cost] <= budget) for budget in budgets]))


def unbeaten(cost: str, both: list[Row], rows: list[Row]) -> float:
    """The share of a front that no network of either front of its seed beats in accuracy and in a cost."""
    of = [row for row in both if row["seed"] == rows[0]["seed"]]

    def beaten(row: Row) -> bool:
        better = [o for o in of if o["accuracy"] >= row["accuracy"] and o[cost] <= row[cost]]
        return any(o["accuracy"] > row["accuracy"] or o[cost] < row[cost] for o in better)

    return float(np.mean([not beaten(row) for row in rows]))


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    quality: Measures = {
        "smallest": partial(of_role, "accuracy", "smallest"),
        "largest": partial(of_role, "accuracy", "largest"),
        "random": partial(of_role, "accuracy", "random"),
        "validation loss": partial(of_role, "loss", "random"),
    }
    everything = read(results, "supernets")
    rows = [row for row in everything if row["role"] != "collapsed"]
    for row in everything:
        if row["role"] == "collapsed":
            print(f"collapsed: {row['kind']}, {row['objective']}, {row['gradients']}, seed {row['seed']}")

    print("## In-place distillation (16)")
    for kind in ("hybrid", "vit", "s3"):
        print(f"### {kind}")
        arms = {"labels": (kind, "labels", "sum"), "distillation": (kind, "alpha", "sum")}
        table(of_arms(rows, arms), "arm", tuple(arms), quality)
    print("## Conflicts in five parts of training (22, Table 4)")
    parts = {f"fifth {part + 1}": partial(conflict, part, 5) for part in range(5)}
    both = [row for row in of_arms(rows, NETWORKS) if row["seed"] < 3]
    table(both, "arm", tuple(NETWORKS), {**parts, "all": partial(conflict, 0, 1)})
    print("## Factors and projection (23, Table 7)")
    of_all: Measures = {**quality, "conflict": partial(conflict, 0, 1)}
    table(of_arms(rows, POLICIES), "arm", tuple(POLICIES), of_all)
    best = of_arms(rows, {"plain": POLICIES["factors, projection"]})
    other = [{**row, "arm": row["recipe"]} for row in read(results, "recipes")]
    table([*best, *other], "arm", ("plain", "shifted", "augmented and regularised", "taught"), of_all)
    print("## Divergence and projection, CNN (24, Table 8)")
    table(of_arms(rows, DIVERGENCES), "arm", tuple(DIVERGENCES), of_all)
    print("## Heads, and where attention begins (25, Tables 10 and 11)")
    scratch = read(results, "scratch")
    alone = {"accuracy": partial(mean, "accuracy"), "validation loss": partial(mean, "loss")}
    table(scratch, "arm", ("heads of 8", "heads of 4", "heads of 16"), alone)
    stages = [{**row, "arm": row["arm"].replace("heads of 8", "from stage 3")} for row in scratch]
    table(stages, "arm", ("from stage 3", "from stage 2", "from stage 4"), alone)
    print("## The predictor on 512 that it has not seen (26)")
    found = read(results, "search")
    predictor: Measures = {
        "Kendall": partial(tau, "predicted", "accuracy"),
        "by MACs alone": partial(tau, "macs", "accuracy"),
        "Spearman": partial(spearman, "predicted", "accuracy"),
        "error": error,
        f"best of its top {TOP} below the best": regret,
    }
    table([row for row in found if row["part"] == "held out"], "part", ("held out",), predictor)
    latency = {"Spearman": partial(mean, "latency_rank"), "median error": partial(mean, "latency_error")}
    print("Latency, predicted from 100 timings, held out by five folds:\n")
    table([row for row in found if row["part"] == "held out"], "part", ("held out",), latency)
    print("## Fronts by MACs and by latency (27, Table 12)")
    fronts = [row for row in found if row["part"] == "front"]
    measures: Measures = {
        "networks": lambda front: float(len(front)),
        "accuracy at equal MACs": partial(at_equal, "macs", fronts),
        "at equal latency": partial(at_equal, "ms", fronts),
        "unbeaten by MACs": partial(unbeaten, "macs", fronts),
        "by latency": partial(unbeaten, "ms", fronts),
    }
    table(fronts, "goal", ("macs", "latency"), measures)


if __name__ == "__main__":
    main()
