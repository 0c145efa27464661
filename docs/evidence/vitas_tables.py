"""The tables of docs/vitas.md, from what vitas.py measured.

python docs/evidence/vitas_tables.py docs/evidence/results             print them
python docs/evidence/vitas_tables.py docs/evidence/results --pack OUT  first put the tasks' files of OUT together
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import stats
from tables import Row, arguments, at, mean, most, read, table, tau

EXPERIMENTS = ("patterns", "truth", "identity", "alignment", "budgets", "finetuned", "tokens", "heads")
"""Of which files are kept; the block's is the benchmark's, in spaces/digits."""

PATTERNS = ("ordinal", "bilateral", "cyclic")


def tau_in_buckets(x: str, y: str, rows: list[Row]) -> float:
    buckets = sorted({row["bucket"] for row in rows})
    return float(np.mean([tau(x, y, [row for row in rows if row["bucket"] == bucket]) for bucket in buckets]))


def with_truth(statistic: Callable[..., Any], column: str, truth: dict[str, Row], rows: list[Row]) -> float:
    both = [(row[column], truth[row["network"]][column]) for row in rows if row["network"] in truth]
    return float(statistic(*np.array(both).T).statistic)


def retrained(column: str, rows: list[Row]) -> float:
    return float(next(row[column] for row in rows if row["best"]))


def main() -> None:
    results = arguments(__doc__, EXPERIMENTS)
    loss, accuracy = partial(mean, "loss"), partial(mean, "accuracy")
    quality = {"validation loss": loss, "accuracy": accuracy}
    losses = {"training loss at 10 %": partial(at, 0.1), "at the end": partial(at, 1)}
    alone = read(results, "truth")
    truth = {row["network"]: row for row in alone if row["seed"] == 0}

    print("## Sharing patterns (2)")
    patterns = read(results, "patterns")
    table(patterns, "sharing", PATTERNS, {**losses, **quality})
    print("## Ranking (3): with MACs, then with 100 networks trained alone")
    with_macs = {
        "over all": partial(tau, "macs", "accuracy"),
        "in one budget": partial(tau_in_buckets, "macs", "accuracy"),
    }
    table(patterns, "sharing", PATTERNS, with_macs)
    table(
        patterns,
        "sharing",
        PATTERNS,
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
        ("anywhere", "shift"),
        {**losses, **quality, "the best, retrained": partial(retrained, "retrained_accuracy")},
    )
    print("## Class tokens (7)")
    table(read(results, "tokens"), "token", ("shared", "private"), {**losses, **quality})
    print("## Private heads (8)")
    table(read(results, "heads"), "private", ("none", "v", "qk", "qkv"), {**losses, **quality})
    print("## Budget alignment (9)")
    found = {**quality, "best accuracy": partial(most, "accuracy")}
    table(read(results, "alignment"), "kind", ("even", "solved"), found)
    for above in (0.45, 0.75):
        print(f"budget above {above:.0%} of the archs")
        rows = [row for row in read(results, "budgets") if row["above"] == above]
        table(rows, "kind", ("even", "solved"), found)
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
