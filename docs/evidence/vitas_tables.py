"""The tables of docs/vitas.md, from what vitas.py measured.

python docs/evidence/vitas_tables.py docs/evidence/results            print them
python docs/evidence/vitas_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import stats

from raynas.statistics import mean_interval

Row = dict[str, Any]
ORDER = [
    "ordinal",
    "bilateral",
    "cyclic",
    "anywhere",
    "shift",
    "even",
    "solved",
    "shared",
    "private",
    "none",
    "v",
    "qk",
    "qkv",
]


def pack(folder: Path, to: Path) -> None:
    """One file for each experiment out of one for each task; the block's is the benchmark's, in spaces/digits."""
    to.mkdir(parents=True, exist_ok=True)
    paths = sorted(path for path in folder.glob("*_*.parquet") if not path.name.startswith("block"))
    for experiment, files in groupby(paths, key=lambda path: path.name.split("_")[0]):
        table = pa.concat_tables([pq.read_table(path) for path in files], promote_options="default")
        keys = [name for name in table.column_names if name in ("sharing", "kind", "token", "private", "index", "seed")]
        table = table.take(pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys]))
        pq.write_table(table.replace_schema_metadata(None), to / f"{experiment}.parquet", compression="zstd")


def read(folder: Path, experiment: str) -> list[Row]:
    path = folder / f"{experiment}.parquet"
    return pq.read_table(path).to_pylist() if path.exists() else []


def cells(rows: Sequence[Row], by: str) -> dict[str, dict[int, list[Row]]]:
    """Rows by arm, then seed."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        found.setdefault(row[by], {}).setdefault(row["seed"], []).append(row)
    return {arm: found[arm] for arm in sorted(found, key=lambda arm: ORDER.index(arm) if arm in ORDER else 99)}


def shown(values: Sequence[float], digits: int = 3) -> str:
    mean, half = mean_interval(values)
    return f"{mean:.{digits}f}" if half is None else f"{mean:.{digits}f} ± {half:.{digits}f}"


def table(
    rows: Sequence[Row], by: str, measures: dict[str, Callable[[list[Row]], float]], digits: int = 3, pairs: bool = True
) -> None:
    """Arms by measures: mean over seeds and its 95 % interval; then each arm less the first, paired by seed."""
    arms = cells(rows, by)
    if not arms:
        print("(not measured)\n")
        return
    values = {
        arm: {name: {seed: measure(seeds[seed]) for seed in sorted(seeds)} for name, measure in measures.items()}
        for arm, seeds in arms.items()
    }
    print(f"| | {' | '.join(measures)} |\n|---|{'---|' * len(measures)}")
    for arm, found in values.items():
        print(f"| {arm} | {' | '.join(shown(list(found[name].values()), digits) for name in measures)} |")
    first, *others = values
    for arm in others if pairs else []:
        both = sorted(set(arms[first]) & set(arms[arm]))
        less = [[values[arm][name][seed] - values[first][name][seed] for seed in both] for name in measures]
        print(f"| *{arm} less {first}* | {' | '.join(shown(each, digits) for each in less)} |")
    print()


def at(share: float, rows: list[Row]) -> float:
    """The training loss after a share of training: the mean of six epochs at the end, one epoch before."""
    curve = json.loads(rows[0]["curve"])
    place = max(1, round(share * len(curve)))
    return float(np.mean(curve[place - 6 : place] if share == 1 else curve[place - 1 : place]))


def mean(column: str, rows: list[Row]) -> float:
    return float(np.mean([row[column] for row in rows]))


def most(column: str, rows: list[Row]) -> float:
    return float(max(row[column] for row in rows))


def tau(x: str, y: str, rows: list[Row]) -> float:
    return float(stats.kendalltau([row[x] for row in rows], [row[y] for row in rows]).statistic)


def tau_in_buckets(x: str, y: str, rows: list[Row]) -> float:
    buckets = sorted({row["bucket"] for row in rows})
    return float(np.mean([tau(x, y, [row for row in rows if row["bucket"] == bucket]) for bucket in buckets]))


def with_truth(statistic: Callable[..., Any], column: str, truth: dict[str, Row], rows: list[Row]) -> float:
    both = [(row[column], truth[row["network"]][column]) for row in rows if row["network"] in truth]
    return float(statistic(*np.array(both).T).statistic)


def retrained(column: str, rows: list[Row]) -> float:
    return float(next(row[column] for row in rows if row["best"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--pack", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.pack:
        pack(options.pack, options.results)
    results = options.results
    loss, accuracy = partial(mean, "loss"), partial(mean, "accuracy")
    quality = {"validation loss": loss, "accuracy": accuracy}
    losses = {"training loss at 10 %": partial(at, 0.1), "at the end": partial(at, 1)}
    alone = read(results, "truth")
    truth = {row["network"]: row for row in alone if row["seed"] == 0}

    print("## Sharing patterns (2)")
    patterns = read(results, "patterns")
    table(patterns, "sharing", {**losses, **quality})
    print("## Ranking (3): with MACs, then with 100 networks trained alone")
    with_macs = {
        "over all": partial(tau, "macs", "accuracy"),
        "in one budget": partial(tau_in_buckets, "macs", "accuracy"),
    }
    table(patterns, "sharing", with_macs)
    table(
        patterns,
        "sharing",
        {
            "Kendall": partial(with_truth, stats.kendalltau, "accuracy", truth),
            "Spearman": partial(with_truth, stats.spearmanr, "accuracy", truth),
            "Pearson": partial(with_truth, stats.pearsonr, "accuracy", truth),
            "Kendall of losses": partial(with_truth, stats.kendalltau, "loss", truth),
        },
    )
    if truth:
        own = tau("macs", "accuracy", list(truth.values()))
        print(f"{len(truth)} networks; tau of their own accuracy with MACs: {own:.3f}")
        repeated = {index: [row for row in alone if row["index"] == index] for index in range(20)}
        for column in ("accuracy", "loss"):
            within = np.mean([np.std([r[column] for r in rows], ddof=1) for rows in repeated.values() if len(rows) > 1])
            between = np.std([row[column] for row in truth.values()], ddof=1)
            print(f"{column}: deviation between networks {between:.4f}, between seeds of one {within:.4f}")
    print("\n## Identity (5)")
    table(
        read(results, "identity"),
        "kind",
        {**losses, **quality, "the best, retrained": partial(retrained, "retrained_accuracy")},
    )
    print("## Class tokens (7)")
    table(read(results, "tokens"), "token", {**losses, **quality})
    print("## Private heads (8)")
    table(read(results, "heads"), "private", {**losses, **quality})
    print("## Budget alignment (9)")
    table(read(results, "alignment"), "kind", {**quality, "best accuracy": partial(most, "accuracy")})
    print("## Fine-tuned and from scratch (13)")
    tuned = [{**row, "scratch": truth[row["network"]]["accuracy"]} for row in read(results, "finetuned")]
    if tuned:
        print("| inherited | fine-tuned | from scratch |\n|---|---|---|")
        for row in tuned:
            print(f"| {row['accuracy']:.3f} | {row['finetuned_accuracy']:.3f} | {row['scratch']:.3f} |")
        names = ("accuracy", "finetuned_accuracy")
        print([f"tau of {name} with scratch: {tau(name, 'scratch', tuned):.2f}" for name in names])


if __name__ == "__main__":
    main()
