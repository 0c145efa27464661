"""ViTAS's claims at the size of digits: trains and scores everything that docs/vitas.md reports.

    python docs/evidence/vitas.py --out results --processes 8 [patterns truth identity tokens heads alignment block]

Every task writes one Parquet file and is skipped when it is there: stop it at any time, run it again. What is random is
seeded, so the same task gives the same rows wherever it runs, to rounding. docs/evidence/vitas_tables.py reads them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]

SEEDS = range(5)
BUCKETS, PER_BUCKET = 8, 250  # ViTAS v2, section 6.4
GROUPS = 10

FREE = {
    "heads": [1, 2, 3, 4],
    "query_width": [12 * i for i in range(1, 11)],
    "mlp_width": [12 * i for i in range(1, 11)],
}
WIDTHS = [6 * i for i in range(1, 11)]
SUPERNET = {
    "epochs": 120,
    "batch_size": 64,
    "opt": "adamw",
    "opt_args": {"fused": True},
    "lr": 2e-3,
    "lr_base_batch": 64,
    "weight_decay": 0.0,
    "sched": "cosine",
    "warmup_epochs": 5,
    "min_lr": 1e-5,
    "health": {"probe_every": 40},
}
"""ViTAS v2 trains its supernets without augmentation and regularisation."""

ALONE = {**SUPERNET, "epochs": 80, "weight_decay": 0.05, "smoothing": 0.1, "health": {"probe_every": 80}}


@dataclass(frozen=True)
class Task:
    """One training and what is scored after it."""

    experiment: str
    run: Callable[..., list[Row]]
    options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def name(self) -> str:
        words = [f"{key}-{value}" for key, value in self.options.items()]
        return "_".join([self.experiment, *words, f"seed-{self.seed}"]).replace(" ", "")


# -- spaces --------------------------------------------------------------------------------------------------------


def digits_space(blocks: dict[str, Any], **constants: Any) -> Any:
    """A space of 8x8 digits, 16 patch tokens, in ten groups of widths."""
    return _space(8, [2], blocks, constants)


def mnist_space(patches: list[int], blocks: dict[str, Any], **constants: Any) -> Any:
    """A space of 28x28 MNIST images."""
    return _space(28, patches, blocks, constants)


def _space(size: int, patches: list[int], blocks: dict[str, Any], constants: dict[str, Any]) -> Any:
    from raynas.space import Space

    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": size, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": None, **constants},
            "dimensions": {"patch_size": patches, "width": WIDTHS, **blocks},
        }
    )


def shifting(blocks: int) -> dict[str, Any]:
    """Up to so many blocks, the first ones."""
    return {"depth": list(range(1, blocks + 1)), "blocks": FREE}


def anywhere(blocks: int) -> dict[str, Any]:
    """Each of so many blocks kept or not."""
    return {"blocks": {"repeat": blocks, "kept": [False, True], **FREE}}


# -- training and scoring ------------------------------------------------------------------------------------------


@lru_cache
def load(name: str) -> Any:
    from raynas.data import DataConfig, load_data

    return load_data(DataConfig(name=name))


def train(
    space: Any, data: str, settings: dict[str, Any], seed: int, plan: dict[str, Any] | None = None, **how: Any
) -> Any:
    """A supernet, or the one network of a one-point space; with its history."""
    from raynas.nets.weights import load_supernet
    from raynas.training import Plan, Recipe, train_network

    recipe = Recipe.model_validate(settings)
    trained = train_network(
        space, load(data), recipe, seed=seed, plan=None if plan is None else Plan.model_validate(plan), **how
    )
    return load_supernet(space, trained.weights).eval(), trained.history


def score(supernet: Any, archs: Sequence[Any], data: str) -> list[Row]:
    """What each arch does on the search split: accuracy and mean cross-entropy, the same images for all."""
    from raynas.costs import cost
    from raynas.data import decode
    from raynas.scoring.core import Statistics, score_arch

    loaded = load(data)
    images, labels = decode(loaded.search, supernet.space.input_size, supernet.space.channels)
    statistics = Statistics(loaded.mean, loaded.std)
    macs = cost(supernet.space, archs)["macs"]
    rows = []
    for arch, count in zip(archs, macs, strict=True):
        result = score_arch(supernet, arch, images, labels, statistics, batch_size=512)
        about = {"arch": arch.id, "network": arch.network_id, "macs": int(count)}
        rows.append({**about, "accuracy": float(result.top1.mean()), "loss": result.loss})
    return rows


def curve(history: list[Row]) -> str:
    """The training loss after each epoch."""
    return json.dumps([round(entry["loss"], 5) for entry in history if "loss" in entry])


@lru_cache
def sampled(space: Any, n: int, seed: int = 0) -> list[Any]:
    """n random archs, equally likely by dimension; the same for every supernet of the space's dimensions."""
    return space.decode(space.sample_codes(np.random.default_rng(seed), n))


@lru_cache
def by_budget(space: Any, per_bucket: int) -> list[Any]:
    """So many different archs from each of eight equal ranges of MACs, the lowest first (v2, section 6.4)."""
    from raynas.costs import sample_within, span

    edges = np.linspace(*span(space)["macs"], BUCKETS + 1)
    archs: list[Any] = []
    for bucket, window in enumerate(itertools.pairwise(edges)):
        drawn = sample_within(space, {"macs": window}, np.random.default_rng(bucket), 2 * per_bucket)
        archs += list(dict.fromkeys(space.decode(drawn)))[:per_bucket]
    assert len(archs) == BUCKETS * per_bucket
    return archs


# -- experiments ---------------------------------------------------------------------------------------------------

BASE = shifting(5)


def truth_archs() -> list[Any]:
    """The hundred archs that are trained alone: a quarter of an eighth from each budget."""
    archs = by_budget(digits_space(BASE, sharing="cyclic"), PER_BUCKET)
    chosen = [archs[bucket * PER_BUCKET + i] for i in range(13) for bucket in range(BUCKETS)]
    return chosen[:100]


def patterns(sharing: str, seed: int) -> list[Row]:
    """Experiments 2 and 3: one supernet by each pattern; 2,000 paths scored, and those of the truth table."""
    space = digits_space(BASE, sharing=sharing)
    supernet, history = train(space, "digits", SUPERNET, seed)
    paths = [space.arch(arch) for arch in by_budget(digits_space(BASE, sharing="cyclic"), PER_BUCKET)]
    rows = score(supernet, paths, "digits")
    return [{**row, "bucket": i // PER_BUCKET, "curve": curve(history)} for i, row in enumerate(rows)]


def truth(index: int, seed: int) -> list[Row]:
    """An arch trained alone from scratch."""
    arch = truth_archs()[index]
    network, history = train(arch.space.fix(arch), "digits", ALONE, seed)
    return [{**score(network, [network.space.smallest()], "digits")[0], **_values(arch), "curve": curve(history)}]


def finetuned(index: int, seed: int) -> list[Row]:
    """Experiment 13: an arch fine-tuned from what it inherits from a cyclic supernet, and that without."""
    supernet, _ = train(digits_space(BASE, sharing="cyclic"), "digits", SUPERNET, seed)
    rows = []
    for arch in truth_archs()[index : index + 10]:
        arch = supernet.space.arch(arch)
        inherited = score(supernet, [arch], "digits")[0]
        settings = {**ALONE, "epochs": 20, "lr": 5e-4, "warmup_epochs": 0}
        start = supernet.extract(arch).state_dict()
        network, _ = train(arch.space.fix(arch), "digits", settings, seed, init=start)
        tuned = score(network, [network.space.smallest()], "digits")[0]
        rows.append({**inherited, "finetuned_accuracy": tuned["accuracy"], "finetuned_loss": tuned["loss"]})
    return rows


def identity(kind: str, seed: int) -> list[Row]:
    """Experiment 5: eight blocks, shifted or dropped anywhere; the same 300 networks scored, the best trained alone."""
    shift = digits_space(shifting(8), sharing="cyclic")
    space = shift if kind == "shift" else digits_space(anywhere(8), sharing="cyclic")
    supernet, history = train(space, "digits", SUPERNET, seed)
    networks = sampled(shift, 300)
    rows = score(supernet, [_in(space, arch) for arch in networks], "digits")
    best = min(range(len(rows)), key=lambda i: (-rows[i]["accuracy"], rows[i]["loss"]))
    alone, _ = train(shift.fix(networks[best]), "digits", ALONE, seed)
    retrained = score(alone, [alone.space.smallest()], "digits")[0]
    return [
        {
            **row,
            "network": networks[i].network_id,
            "best": i == best,
            "retrained_accuracy": retrained["accuracy"] if i == best else None,
            "retrained_loss": retrained["loss"] if i == best else None,
            "curve": curve(history),
        }
        for i, row in enumerate(rows)
    ]


def _in(space: Any, arch: Any) -> Any:
    """A network of a depth as a path of a space whose blocks are kept or not: the first ones."""
    if space.has("depth"):
        return arch
    values = dict(arch)
    depth = values.pop("depth")
    kept = sum(dimension.name.endswith(".kept") for dimension in space.dimensions)
    return space.arch({**values, **{f"blocks.{i}.kept": i < depth for i in range(kept)}})


MNIST = {**SUPERNET, "epochs": 40, "health": {"probe_every": 40}}


def tokens(token: str, seed: int) -> list[Row]:
    """Experiment 7: three patch sizes with one class token between them, or one each."""
    space = mnist_space([14, 7, 4], shifting(4), sharing="cyclic", private_class_token=token == "private")
    supernet, history = train(space, "mnist5k", MNIST, seed)
    rows = score(supernet, sampled(space, 200), "mnist5k")
    patches = [arch["patch_size"] for arch in sampled(space, 200)]
    return [{**row, "patch": patch, "curve": curve(history)} for row, patch in zip(rows, patches, strict=True)]


def heads(private: str, seed: int) -> list[Row]:
    """Experiment 8: which of query, key and value each head count has of its own (v1, Table 2)."""
    blocks = {"depth": [1, 2, 3, 4], "blocks": {**FREE, "heads": [1, 2, 3, 6]}}
    space = mnist_space([7], blocks, sharing="cyclic", private_heads=private)
    supernet, history = train(space, "mnist5k", MNIST, seed)
    return [{**row, "curve": curve(history)} for row in score(supernet, sampled(space, 200), "mnist5k")]


def alignment(kind: str, seed: int) -> list[Row]:
    """Experiment 9: a budget of the lowest tenth of MACs; blocks dropped evenly, or as often as the budget wants."""
    from raynas.costs import cost, sample_within, span

    space = digits_space(anywhere(5), sharing="cyclic")
    everything = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))["macs"]
    window = (float(span(space)["macs"][0]), float(np.quantile(everything, 0.1)))
    sampler = {"name": "single_path", **({"align": {"macs": list(window)}} if kind == "solved" else {})}
    supernet, history = train(space, "digits", SUPERNET, seed, {"sampler": sampler})
    codes = sample_within(space, {"macs": window}, np.random.default_rng(1), 300)
    return [{**row, "curve": curve(history)} for row in score(supernet, space.decode(codes), "digits")]


def block(seed: int) -> list[Row]:
    """Experiment 10: one block stacked; all 4,000 archs scored."""
    from raynas.space import load_space

    space = load_space("digits/vitas_block")
    supernet, history = train(space, "digits", SUPERNET, seed)
    archs = list(space.enumerate())
    rows = score(supernet, archs, "digits")
    return [{**row, **_values(arch), "curve": curve(history)} for row, arch in zip(rows, archs, strict=True)]


def _values(arch: Any) -> Row:
    return {"values": json.dumps(arch.to_dict())}


def tasks(experiment: str) -> Iterator[Task]:
    """The tasks of an experiment, the longest first."""
    cells: dict[str, list[tuple[Callable[..., list[Row]], dict[str, Any]]]] = {
        "patterns": [(patterns, {"sharing": name}) for name in ("bilateral", "cyclic", "ordinal")],
        "identity": [(identity, {"kind": name}) for name in ("shift", "anywhere")],
        "tokens": [(tokens, {"token": name}) for name in ("shared", "private")],
        "heads": [(heads, {"private": name}) for name in ("none", "v", "qk", "qkv")],
        "alignment": [(alignment, {"kind": name}) for name in ("even", "solved")],
    }
    if experiment in cells:
        yield from (Task(experiment, run, options, seed) for run, options in cells[experiment] for seed in SEEDS)
    elif experiment == "truth":
        yield from (Task("truth", truth, {"index": index}, 0) for index in range(100))
        yield from (Task("truth", truth, {"index": index}, seed) for seed in (1, 2) for index in range(20))
    elif experiment == "finetuned":
        yield Task("finetuned", finetuned, {"index": 0}, 0)
    elif experiment == "block":
        yield from (Task("block", block, {}, seed) for seed in SEEDS)
    else:
        raise SystemExit(f"no experiment {experiment!r}: {', '.join(EXPERIMENTS)}")


EXPERIMENTS = ("patterns", "truth", "identity", "alignment", "finetuned", "block", "tokens", "heads")


def carry_out(given: tuple[Task, Path]) -> str:
    """Run a task and write its rows; the line to show."""
    import torch

    torch.set_num_threads(1)
    task, folder = given
    path = folder / f"{task.name}.parquet"
    began = time.monotonic()
    try:
        rows = task.run(**task.options, seed=task.seed)
    except Exception:
        return f"{task.name} failed:\n{traceback.format_exc()}"
    about = {"experiment": task.experiment, **task.options, "seed": task.seed}
    table = pa.Table.from_pylist([{**about, **row} for row in rows])
    hidden = path.with_suffix(".tmp")
    pq.write_table(table, hidden)
    hidden.rename(path)
    return f"{task.name}: {len(rows)} rows in {time.monotonic() - began:.0f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("experiments", nargs="*", default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [task for experiment in options.experiments or EXPERIMENTS for task in tasks(experiment)]
    todo = [(task, options.out) for task in wanted if not (options.out / f"{task.name}.parquet").exists()]
    print(f"{len(todo)} of {len(wanted)} tasks to do", flush=True)
    began = time.monotonic()
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with context.Pool(options.processes) as pool:
        for done, line in enumerate(pool.imap_unordered(carry_out, todo), 1):
            print(f"[{done}/{len(todo)} {time.monotonic() - began:.0f} s] {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
