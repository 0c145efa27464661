"""Every ratio of our own speed in one table, as far as one machine can measure it without other code than timm's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raynas.bench import PARTS
from raynas.bench.archs import bench_archs
from raynas.bench.formats import bench_channels_last, bench_precision
from raynas.bench.measured import Measured
from raynas.bench.sandwich import bench_sandwich
from raynas.bench.score import bench_score
from raynas.bench.step import bench_step
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent


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
        rounds: measurements of each kind.
        threads: threads of torch, also of each replica.
        device: a torch device; of a GPU every replica gets its share.
        replicas: replicas of the scoring pool.
        progress: called with lines of text.

    Raises:
        UserError: there is no such part or device.
    """
    if unknown := [name for name in only if name not in PARTS]:
        raise UserError(f"bench all has no part {unknown[0]!r}: {', '.join(PARTS)}")
    gpus = 0.0 if device.startswith("cpu") else 1 / replicas
    parts: dict[str, Callable[[Progress], list[Measured]]] = {
        "step": lambda say: bench_step(rounds, threads=threads, device=device, progress=say),
        "sandwich": lambda say: bench_sandwich(rounds=rounds, threads=threads, device=device, progress=say),
        "channels_last": lambda say: bench_channels_last(rounds=rounds, threads=threads, device=device, progress=say),
        "precision": lambda say: bench_precision(rounds=rounds, threads=threads, device=device, progress=say),
        "pool": lambda say: bench_score(replicas=replicas, threads=threads, gpus=gpus, rounds=rounds, progress=say),
        "archs": lambda say: bench_archs(rounds=rounds, progress=say),
    }
    rows: list[Measured] = []
    for name in only:
        progress(f"measuring {name}")
        rows += parts[name](lambda line, name=name: progress(f"{name}: {line}"))  # type: ignore[misc]
    return rows
