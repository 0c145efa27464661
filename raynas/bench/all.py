"""Every ratio of our own speed in one table, as far as one machine can measure it without other code than timm's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raynas.bench import PARTS
from raynas.bench.archs import bench_archs
from raynas.bench.formats import bench_channels_last, bench_precision
from raynas.bench.measured import Measured
from raynas.bench.sandwich import bench_sandwich
from raynas.bench.score import bench_score
from raynas.bench.step import bench_step
from raynas.errors import UserError
from raynas.progress.reporter import Progress, reporter, silent


def bench_all(
    only: Sequence[str] = PARTS,
    rounds: int = 5,
    threads: int = 1,
    device: str = "cpu",
    replicas: int = 2,
    progress: Progress = silent,
) -> list[Measured]:
    """Measure the parts one after the other; within a part, what is compared takes turns.

    Args:
        only: names of `PARTS`.
        threads: threads of torch, also of each replica.
        device: a torch device; of a GPU every replica gets its share.
        replicas: replicas of the scoring pool.

    Raises:
        UserError: there is no such part or device.
    """
    if unknown := [name for name in only if name not in PARTS]:
        raise UserError(f"bench all has no part {unknown[0]!r}: {', '.join(PARTS)}")
    show = reporter(progress)
    gpus = 0.0 if device.startswith("cpu") else 1 / replicas
    here: dict[str, Any] = {"rounds": rounds, "threads": threads, "device": device, "progress": show}
    parts: dict[str, Callable[[], list[Measured]]] = {
        "step": partial(bench_step, **here),
        "sandwich": partial(bench_sandwich, **here),
        "channels_last": partial(bench_channels_last, **here),
        "precision": partial(bench_precision, **here),
        "pool": lambda: bench_score(replicas=replicas, threads=threads, gpus=gpus, rounds=rounds, progress=show),
        "archs": lambda: bench_archs(rounds=rounds, progress=show),
    }
    rows: list[Measured] = []
    for name in only:
        with show.doing(f"measuring {name}"):
            rows += parts[name]()
    return rows
