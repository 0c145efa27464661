"""The truth tables of docs/truths.md: networks of five spaces, each trained alone on clutter with three seeds.

    python docs/evidence/truths.py --out results --processes 1

Stop it at any time, run it again. docs/evidence/truths_tables.py puts the rows into spaces/truths, and
what is there is not trained again.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from tasks import Row, Task, run_tasks

PRESET = "truths"
"""Has the data and the recipe."""

NETWORKS = {"vit": 100, "twins": 30, "s3": 30, "vit_res": 30, "hybrid": 30}
"""Networks of each space of spaces/truths."""

FIRST = 4
"""The first so many networks of each space get all their seeds at once, so that the seeds' noise is known early."""

STORED = Path(__file__).parents[2] / "spaces/truths"
SCORED_AT_ONCE = 250  # as in training, so that the last epoch's accuracy is the score to the bit


@lru_cache
def archs_of(family: str) -> list[Any]:
    """Random archs, equally likely by dimension, no two of them the same network."""
    from raynas.space import load_space

    space = load_space(f"truths/{family}")
    found: dict[str, Any] = {}
    for arch in space.decode(space.sample_codes(np.random.default_rng(0), 4 * NETWORKS[family])):
        found.setdefault(arch.network_id, arch)
    return list(found.values())[: NETWORKS[family]]


def truth(family: str, index: int, seed: int) -> list[Row]:
    """A network trained alone on the training split, and what it gets right of the search split and the test images."""
    import torch

    from raynas.costs.columns import arch_columns
    from raynas.data.images import decode
    from raynas.latency.timing import time_arch
    from raynas.nets.weights import load_supernet
    from raynas.presets.preset import load_preset
    from raynas.scoring.score_arch import score_arch
    from raynas.training.loop import train_loop
    from raynas.training.plan import Plan

    arch, recipe, (data, test) = archs_of(family)[index], load_preset(PRESET).recipe, images()
    timing = time_arch(arch)
    began = cpu_seconds()
    alone = arch.space.fix(arch)
    trained = train_loop(alone, data, Plan(), recipe.model_copy(update={"seed": seed}))
    network, history = load_supernet(alone, trained.weights).eval(), trained.history
    row = {
        **arch_columns(arch),
        "curve": [entry["probes"][0]["accuracy"] for entry in history if "probes" in entry],
        "train_loss": [entry["loss"] for entry in history if "loss" in entry],
        "rollbacks": sum("loss" not in entry for entry in history),
        "cpu_s": cpu_seconds() - began,
        "ms": timing.ms,
        "ms_ratio": timing.ratio,
        "device": timing.on.device,
        "torch": torch.__version__,
        "data": data.fingerprint,
    }
    for split, those in (("search", data.search), ("test", test)):
        score = score_arch(network, alone.smallest(), *decode(those), data.normalisation, SCORED_AT_ONCE)
        of = "" if split == "search" else "test_"
        row |= {f"{of}accuracy": float(score.top1.mean()), f"{of}loss": score.loss}
        row |= {f"{split}_correct": np.packbits(score.top1).tobytes(), f"{split}_images": len(score.top1)}
    return [row]


@lru_cache
def images() -> tuple[Any, Any]:
    """The training and search images, and the test images."""
    from raynas.data.load import load_data, load_test
    from raynas.presets.preset import load_preset

    config = load_preset(PRESET).data
    assert config is not None
    return load_data(config), load_test(config)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def stored(family: str) -> set[tuple[str, int]]:
    """The network and seed of each training that spaces/truths has."""
    path = STORED / f"{family}.parquet"
    if not path.exists():
        return set()
    rows = pq.read_table(path, columns=["network", "seed"]).to_pylist()
    return {(row["network"], row["seed"]) for row in rows}


def tasks(experiment: str) -> Iterator[Task]:
    """The trainings that are not stored; seed by seed, the spaces in turns, so that what there is can be used."""
    wanted = [
        (index >= FIRST, seed if index >= FIRST else 0, index / count, seed, family, index)
        for family, count in NETWORKS.items()
        for index in range(count)
        for seed in range(3)
    ]
    known = {family: stored(family) for family in NETWORKS}
    for *_, seed, family, index in sorted(wanted):
        if (archs_of(family)[index].network_id, seed) not in known[family]:
            yield Task(experiment, truth, {"family": family, "index": index}, seed)


if __name__ == "__main__":
    run_tasks(__doc__ or "", ["truths"], tasks)
