"""What the evidence scripts share: tasks that can be stopped and run again, training, and scoring.

Every task writes one Parquet file and is skipped when it is there. What is random is seeded, so the same task gives the
same rows wherever it runs, to rounding.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Row = dict[str, Any]

SEEDS = range(5)

FOLDER = "RAYNAS_EVIDENCE"
"""Name of the environment variable with the folder of the rows, set before a task runs."""

SUPERNET: dict[str, Any] = {
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

RECIPE: dict[str, Any] = {
    "epochs": 30,
    "batch_size": 64,
    "opt": "adamw",
    "opt_args": {"fused": True},
    "lr": 1e-3,
    "lr_base_batch": 64,
    "weight_decay": 0.05,
    "sched": "cosine",
    "warmup_epochs": 3,
    "min_lr": 1e-5,
    "smoothing": 0.1,
    "health": {"probe_every": 30},
}
"""For networks trained alone, and for supernets of stages."""


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


@lru_cache
def load(name: str) -> Any:
    """A dataset by name; `mnist5k@32` is decoded at 32 pixels."""
    from raynas.data.config import DataConfig
    from raynas.data.load import load_data

    dataset, _, size = name.partition("@")
    return load_data(DataConfig(name=dataset, size=int(size) if size else None))


def train(
    space: Any, data: str, settings: dict[str, Any], seed: int, plan: dict[str, Any] | None = None, **how: Any
) -> Any:
    """A supernet, or the one network of a one-point space; with its history."""
    from raynas.nets.weights import load_supernet
    from raynas.training.loop import train_loop
    from raynas.training.plan import Plan
    from raynas.training.recipe import Recipe

    recipe = Recipe.model_validate({**settings, "seed": seed})
    trained = train_loop(space, load(data), Plan.model_validate(plan or {}), recipe, **how)
    return load_supernet(space, trained.weights).eval(), trained.history


FAMILIES = {"vit": "digits/vit", "hybrid": "digits/nasvit", "s3": "digits/s3"}


def small_supernet(family: str, seed: int) -> Any:
    """A supernet of a small space, trained on `mnist5k` at 8 pixels; kept beside the rows for all that run there."""
    import raynas
    from raynas.nets.weights import load_supernet

    space, path = raynas.load_space(FAMILIES[family]), Path(os.environ[FOLDER]) / f"{family}_seed-{seed}.safetensors"
    if not path.exists():
        from safetensors.torch import save_file

        settings = {**RECIPE, "epochs": 8, "warmup_epochs": 1, "health": {"probe_every": 8}}
        supernet, _ = train(space, "mnist5k@8", settings, seed, {"sampler": {"name": "sandwich"}})
        hidden = path.with_suffix(".tmp")
        save_file(supernet.state_dict(), hidden)
        hidden.rename(path)
    return load_supernet(space, path).eval()


def distorted(pixels: Any, copies: int) -> Any:
    """Copies of images, each turned, moved, sheared and scaled a little at random."""
    import torch
    import torch.nn.functional as F

    generator = torch.Generator().manual_seed(0)
    images = pixels.float().repeat(copies, 1, 1, 1)
    change = torch.eye(2, 3) + torch.randn(len(images), 2, 3, generator=generator) * torch.tensor([0.12, 0.12, 0.06])
    moved = F.grid_sample(images, F.affine_grid(change, list(images.shape), align_corners=False), align_corners=False)
    return moved.round().clamp(0, 255).to(torch.uint8)


def distorted_scorer(family: str, seed: int, copies: int, **options: Any) -> Any:
    """A scorer of a small supernet on distorted images of its search split, which has 800."""
    from raynas.data.augment import AugmentConfig
    from raynas.data.calibration import Calibration, calibration_batches
    from raynas.data.config import CalibrationConfig
    from raynas.data.images import decode
    from raynas.nets.calibration import wants_calibration
    from raynas.scoring.local import LocalScorer

    supernet, data = small_supernet(family, seed), load("mnist5k@8")
    pixels, labels = decode(data.search.at(supernet.space.input_size, supernet.space.channels))
    config, calibration = CalibrationConfig(images=256, batch_size=256, seed=0), None
    if wants_calibration(supernet):
        calibration = Calibration(config, partial(calibration_batches, data, AugmentConfig(), config))
    parts = (supernet.space, supernet, distorted(pixels, copies), labels.repeat(copies), data.normalisation)
    return LocalScorer.from_parts(*parts, calibration=calibration, **options)


def score(supernet: Any, archs: Sequence[Any], data: str, calibration: int | None = None) -> list[Row]:
    """What each arch does on the search split: accuracy and mean cross-entropy, the same images for all.

    Args:
        supernet: trained.
        archs: of its space.
        data: a dataset by name.
        calibration: so many training images, in one batch, are what each arch's batch norms are calibrated on first.
    """
    from raynas.costs import cost
    from raynas.data.augment import AugmentConfig
    from raynas.data.calibration import calibration_batches
    from raynas.data.config import CalibrationConfig
    from raynas.data.images import decode
    from raynas.scoring.score_arch import score_arch

    loaded, batches = load(data), None
    if calibration is not None:
        config = CalibrationConfig(images=calibration, batch_size=calibration)
        batches = calibration_batches(loaded, AugmentConfig(), config)
    images, labels = decode(loaded.search.at(supernet.space.input_size, supernet.space.channels))
    macs = cost(supernet.space, archs)["macs"]
    rows = []
    for arch, count in zip(archs, macs, strict=True):
        result = score_arch(supernet, arch, images, labels, loaded.normalisation, batch_size=512, calibration=batches)
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


def run_tasks(doc: str, experiments: Sequence[str], tasks: Callable[[str], Iterator[Task]]) -> None:
    """The command line of an evidence script.

    Args:
        doc: what its help says.
        experiments: all that there are, in the order in which they run.
        tasks: the tasks of an experiment.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("experiments", nargs="*", default=[])
    options = parser.parse_args()
    for experiment in options.experiments:
        if experiment not in experiments:
            parser.error(f"no experiment {experiment!r}: {', '.join(experiments)}")
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [task for experiment in options.experiments or experiments for task in tasks(experiment)]
    todo = [(task, options.out) for task in wanted if not (options.out / f"{task.name}.parquet").exists()]
    print(f"{len(todo)} of {len(wanted)} tasks to do", flush=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the processes of the pool end as well
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    with context.Pool(options.processes) as pool:
        for done, line in enumerate(pool.imap_unordered(_carry_out, todo), 1):
            print(f"[{done}/{len(todo)} {time.monotonic() - began:.0f} s] {line}", flush=True)


def _carry_out(given: tuple[Task, Path]) -> str:
    """Run a task and write its rows; the line to show."""
    import torch

    torch.set_num_threads(1)
    task, folder = given
    os.environ[FOLDER] = str(folder)
    path = folder / f"{task.name}.parquet"
    began = time.monotonic()
    try:
        rows = task.run(**task.options, seed=task.seed)
    except Exception:
        return f"{task.name} failed:\n{traceback.format_exc()}"
    about = {"experiment": task.experiment, **task.options, "seed": task.seed}
    every = {name: None for row in rows for name in row}  # rows of one task may differ in their columns
    table = pa.Table.from_pylist([{**about, **every, **row} for row in rows])
    hidden = path.with_suffix(".tmp")
    pq.write_table(table, hidden)
    hidden.rename(path)
    return f"{task.name}: {len(rows)} rows in {time.monotonic() - began:.0f} s"
