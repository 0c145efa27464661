"""The tables of docs/truths.md, from spaces/truths.

python docs/evidence/truths_tables.py             print them
python docs/evidence/truths_tables.py --pack OUT  first add what truths.py has left in OUT to spaces/truths
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tables import Row, spread_to_noise
from truths import NETWORKS, PRESET, STORED, archs_of, images

from raynas.bench.truths import Truth, load_truth
from raynas.correlation import RESAMPLES, correlations, kendall
from raynas.presets.preset import load_preset
from raynas.proxies.scorer import ProxyScorer, proxy_images
from raynas.search.predictors import fit_forest

EPOCHS = (2, 4, 8)
PROXIES = ("synflow", "naswot", "dss", "az_nas")
FOLDS = 5
FEWEST = 10
"""Networks that a correlation needs."""


def pack(folder: Path, family: str) -> None:
    """Add the trainings in a folder to those stored of a space, in the order of archs and seeds."""
    path = STORED / f"{family}.parquet"
    rows: list[Row] = pq.read_table(path).to_pylist() if path.exists() else []
    rows += [row for file in sorted(folder.glob(f"truths_family-{family}_index-*.parquet")) for row in rows_of(file)]
    if not rows:
        return
    order = {arch.network_id: place for place, arch in enumerate(archs_of(family))}
    by_key = {(order[row["network"]], row["seed"]): row for row in rows}
    table = pa.Table.from_pylist([by_key[key] for key in sorted(by_key)])
    about = {"space": rows[0]["space"], "data": rows[0]["data"], "recipe": load_preset(PRESET).recipe.model_dump_json()}
    assert all(len(set(table[name].to_pylist())) == 1 for name in ("space", "data"))
    pq.write_table(table.replace_schema_metadata(about), path, compression="zstd", compression_level=19)


def rows_of(file: Path) -> list[Row]:
    """The rows of a task, without its options."""
    return pq.read_table(file).drop_columns(["experiment", "family", "index"]).to_pylist()


def networks(truths: dict[str, Truth]) -> None:
    """What there is of each space."""
    print(
        "| space | archs in it | trained | trainings | MACs, M | parameters | accuracy, search, % | test, % "
        "| CPU seconds of a training |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for family, truth in truths.items():
        found = [truth.macs / 1e6, truth.params, 100 * truth.accuracies(), 100 * truth.accuracies(split="test")]
        formats = ("{:.2f}", "{:,.0f}", "{:.1f}", "{:.1f}")
        spans = [
            f"{form.format(each.min())} to {form.format(each.max())}" for form, each in zip(formats, found, strict=True)
        ]
        seconds = np.mean(truth.table["cpu_s"].to_numpy())
        print(
            f"| `truths/{family}` | {truth.space.cardinality():,} | {len(truth.archs)} of {NETWORKS[family]} "
            f"| {len(truth.table)} of {3 * NETWORKS[family]} | {' | '.join(spans)} | {seconds:.0f} |"
        )
    hours = sum(sum(truth.table["cpu_s"].to_pylist()) for truth in truths.values()) / 3600
    print(f"\n{sum(len(truth.table) for truth in truths.values())} trainings, {hours:.1f} hours of one core\n")


def noise(truths: dict[str, Truth]) -> None:
    """The deviation between networks beside that between the seeds of one network, where three networks have seeds."""
    print("| space | split | networks | seeds | between networks, points | between seeds, points | ratio |")
    print("|---|---|---|---|---|---|---|")
    for family, truth in truths.items():
        for split in ("search", "test"):
            every = 100 * np.stack([truth.accuracies(seed=seed, split=split) for seed in range(3)], 1)
            for seeds in (3, 2):
                values = every[~np.isnan(every[:, :seeds]).any(1), :seeds]
                if len(values) >= 3:
                    between, within, (low, ratio, high) = spread_to_noise(values)
                    said = f"{between:.1f} | {within:.1f} | {ratio:.1f} [{low:.1f}, {high:.1f}]"
                    print(f"| `truths/{family}` | {split} | {len(values)} | {seeds} | {said} |")
                    break
    print()


def taus(truths: dict[str, Truth]) -> None:
    """How costs, training-free scores, short trainings, another seed and a model rank the networks."""
    truths = {family: truth for family, truth in truths.items() if len(truth.archs) >= FEWEST}
    if not truths:
        return print(f"(Correlations need {FEWEST} networks.)")
    found = {family: ranked(truth) for family, truth in truths.items()}
    print(f"| tau with accuracy on the test images by | {' | '.join(f'`truths/{family}`' for family in found)} |")
    print(f"|---|{'---|' * len(found)}")
    for name in dict.fromkeys(name for each in found.values() for name in each):
        print(f"| {name} | {' | '.join(each[name] for each in found.values())} |")


def ranked(truth: Truth) -> dict[str, str]:
    """Kendall's tau of several quantities with the accuracy on the test images, with its 95 % interval, by name."""
    final = truth.accuracies(split="test")
    quantities = {
        "MACs": truth.macs,
        "parameters": truth.params,
        "milliseconds": truth.ms,
        **{f"`{proxy}`": np.array(scorer_of(truth, proxy).score(truth.archs)) for proxy in PROXIES},
        **{f"accuracy on the search split after {n} epochs": truth.accuracies(n) for n in EPOCHS},
        "accuracy on the search split": truth.accuracies(),
        f"a forest, {FOLDS} folds": predicted(truth),
    }
    found = {name: tau(values, final) for name, values in quantities.items()}
    first, second = (truth.accuracies(seed=seed, split="test") for seed in (0, 1))
    both = ~np.isnan(first) & ~np.isnan(second)
    found["*`synflow` less parameters*"] = ahead(quantities["`synflow`"], truth.params, final)
    found["one seed by another"] = tau(first[both], second[both]) if both.sum() >= FEWEST else "-"
    error = 100 * np.sqrt(np.mean((quantities[f"a forest, {FOLDS} folds"] - truth.accuracies()) ** 2))
    return {**found, "error of the forest (RMSE), points": f"{error:.1f}"}


def tau(values: np.ndarray, final: np.ndarray) -> str:
    rows = correlations(values.tolist(), final.tolist(), np.random.default_rng(0))
    found = next(row for row in rows if row["statistic"] == "kendall")
    return f"{found['value']:.2f} [{found['lower']:.2f}, {found['upper']:.2f}]"


def ahead(values: np.ndarray, others: np.ndarray, final: np.ndarray) -> str:
    """How much better one quantity ranks than another, over the same networks, with its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(len(final), size=(RESAMPLES, len(final)))
    every = np.concatenate([np.arange(len(final))[None], draws])
    less, *resampled = kendall(values, final, every) - kendall(others, final, every)
    low, high = np.percentile(resampled, [2.5, 97.5])
    return f"{less:.2f} [{low:.2f}, {high:.2f}]"


def patches(truth: Truth) -> None:
    """How good the networks of each patch size are, and how MACs rank them."""
    final, sizes = truth.accuracies(split="test"), np.array([arch["patch_size"] for arch in truth.archs])
    print("\n| patch size | networks | accuracy, test, % | tau with MACs |\n|---|---|---|---|")
    for size in np.unique(sizes):
        there = sizes == size
        print(f"| {size} | {there.sum()} | {100 * final[there].mean():.1f} | {tau(truth.macs[there], final[there])} |")


def scorer_of(truth: Truth, proxy: str) -> ProxyScorer:
    """A training-free score on images of the search split."""
    data, _ = images()
    return ProxyScorer(truth.space, proxy, proxy_images(truth.space, data.search, data.normalisation))


def predicted(truth: Truth) -> np.ndarray:
    """The accuracy of each network as the model of `truth.scorer()` predicts it from the other folds' networks."""
    codes, values = truth.space.encode(truth.archs), truth.accuracies()
    fold = np.random.default_rng(0).permutation(len(values)) % FOLDS
    found = np.empty(len(values))
    for each in range(FOLDS):
        found[fold == each] = fit_forest(truth.space, codes[fold != each], values[fold != each], 0)(codes[fold == each])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, metavar="OUT")
    options = parser.parse_args()
    if options.pack:
        for family in NETWORKS:
            pack(options.pack, family)
    there = {family: load_truth(family) for family in NETWORKS if (STORED / f"{family}.parquet").exists()}
    networks(there)
    noise(there)
    taus(there)
    patches(there["vit"])
