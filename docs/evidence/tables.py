"""What the scripts share that print the tables of docs/ out of the evidence."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import stats

from raynas.comparison import mean_interval

Row = dict[str, Any]
Measures = Mapping[str, Callable[[list[Row]], float]]


def arguments(doc: str | None, experiments: Sequence[str]) -> Path:
    """The folder of results that the command line names, first packed if it says so."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--pack", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.pack:
        pack(options.pack, options.results, experiments)
    return options.results


def pack(folder: Path, to: Path, experiments: Sequence[str]) -> None:
    """One file for each experiment out of one for each task."""
    to.mkdir(parents=True, exist_ok=True)
    for experiment in experiments:
        files = sorted(folder.glob(f"{experiment}_*.parquet"))
        if not files:
            continue
        table = pa.concat_tables([pq.read_table(path) for path in files], promote_options="default")
        names = table.column_names
        keys = names[names.index("experiment") + 1 : names.index("seed") + 1]  # the options of a task, and its seed
        table = table.take(pc.sort_indices(table, sort_keys=[(key, "ascending") for key in keys]))
        pq.write_table(table.replace_schema_metadata(None), to / f"{experiment}.parquet", compression="zstd")


def read(folder: Path, experiment: str) -> list[Row]:
    path = folder / f"{experiment}.parquet"
    return pq.read_table(path).to_pylist() if path.exists() else []


def cells(rows: Sequence[Row], by: str, arms: Sequence[Any]) -> dict[Any, dict[int, list[Row]]]:
    """Rows by arm, in the order of `arms`, then seed."""
    found: dict[Any, dict[int, list[Row]]] = {}
    for row in rows:
        found.setdefault(row[by], {}).setdefault(row["seed"], []).append(row)
    return {arm: found[arm] for arm in arms if arm in found}


def shown(values: Sequence[float], digits: int = 3) -> str:
    mean, half = mean_interval(values)
    return f"{mean:.{digits}f}" if half is None else f"{mean:.{digits}f} ± {half:.{digits}f}"


def table(
    rows: Sequence[Row],
    by: str,
    order: Sequence[Any],
    measures: Measures,
    digits: int = 3,
) -> None:
    """Arms by measures: mean over seeds and its 95 % interval; then each arm less the first, paired by seed."""
    arms = cells(rows, by, order)
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
    for arm in others:
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


def spread_to_noise(values: np.ndarray) -> tuple[float, float, tuple[float, float, float]]:
    """The deviation between networks, that between seeds of one network, and their ratio within its 95 % interval.

    With k networks of n seeds each, n times the variance of means over the variance within networks is F distributed
    around 1 + n r^2, where r is the ratio; so is its interval.

    Args:
        values: [networks, seeds].

    Returns:
        Both deviations, and the lower end of the ratio's interval, the ratio and the upper end.
    """
    networks, seeds = values.shape
    within, of_means = values.var(1, ddof=1).mean(), values.mean(1).var(ddof=1)
    f = seeds * of_means / within
    high, low = (f / stats.f.ppf(share, networks - 1, networks * (seeds - 1)) for share in (0.025, 0.975))
    ratios = [float(np.sqrt(max(0.0, (each - 1) / seeds))) for each in (low, f, high)]
    between = float(np.sqrt(max(0.0, of_means - within / seeds)))
    return between, float(np.sqrt(within)), (ratios[0], ratios[1], ratios[2])
