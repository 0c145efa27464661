"""Throughput of a scoring pool compared with the bare forward passes of its replicas."""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise

import numpy as np
import ray

from raynas.bench.measured import Measured
from raynas.data.load import load_data
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run
from raynas.scoring.pool import ScorePool
from raynas.scoring.scored_supernet import ScoredSupernet, load_scored_supernet, make_scored_supernet
from raynas.space import Space, load_space


def bench_score(
    run: Run | str | None = None,
    space: Space | str = "digits/vit",
    data: str = "digits",
    archs: int = 1200,
    replicas: int = 2,
    batch_size: int = 256,
    threads: int = 1,
    gpus: float = 0.0,
    images: int | None = None,
    precision: str = "fp32",
    seconds: float = 5.0,
    rounds: int = 3,
    progress: Progress = silent,
) -> list[Measured]:
    """Score random archs with a pool, and time nothing but forward passes over the same archs in its replicas.

    The limit is measured before and after each round, in all replicas at once, on images that are already normalised.
    The difference is the cost of choosing archs, sending them, counting hits, checking weights and writing rows.

    Args:
        run: has a trained supernet and its data; None for a fresh supernet of `space` on `data`.
        space, data: used if there is no run.
        archs: number of archs to score, over all rounds; a round should take seconds, as it waits for its last archs.
        replicas, batch_size, threads, gpus, images, precision: as for `ScorePool`.
        seconds: duration of each measurement of the limit.
        rounds: parts in which the archs are scored.
        progress: called with a line at each step.

    Returns:
        Subnets scored a second, beside subnets passed a second. Rows go to a temporary store.

    Raises:
        UserError: as for `ScorePool`, or there are not enough archs for the replicas and rounds.
    """
    progress("loading supernet and images")
    scored = _fresh(space, data, images) if run is None else load_scored_supernet(Run(run), images)
    drawn = scored.space.decode(scored.space.sample_codes(np.random.default_rng(0), archs * 4))
    chosen = list(dict.fromkeys(drawn))[:archs]
    if len(chosen) < replicas + rounds:  # each replica warms up with one
        raise UserError(
            f"{len(chosen)} archs leave nothing to time in {rounds} rounds on {replicas} replicas: give more archs"
        )
    with tempfile.TemporaryDirectory() as folder:
        pool = ScorePool(
            None,
            replicas,
            batch_size,
            threads,
            gpus,
            precision=precision,
            scored=scored,
            store=Run(folder, create=True).store,
        )
        progress(f"starting {replicas} replicas")
        with pool:
            pool.supervisor.wait_for_all()
            values = ray.put([dict(arch) for arch in chosen])

            def limit() -> float:
                passed = pool.supervisor.ask_all(
                    lambda actor: actor.forward_alone.remote(values, seconds), 60.0 + 20.0 * seconds
                )
                return sum(count / taken for count, taken in passed)

            pool.score(chosen[:replicas])  # the first passes allocate
            progress("forward passes alone")
            limits, rates = [limit()], []
            for round_ in range(rounds):
                part = chosen[replicas + round_ :: rounds]
                progress(f"scoring {len(part)} archs, round {round_ + 1} of {rounds}")
                began = time.perf_counter()
                rows = pool.score(part)
                rates.append(len(rows) / (time.perf_counter() - began))
                progress("forward passes alone, again")
                limits.append(limit())
    name = (
        f"scores of {scored.space.name} by {replicas} replicas ({len(scored.images)} images, {precision}) / "
        "their forward passes alone"
    )
    between = [(before + after) / 2 for before, after in pairwise(limits)]
    return [Measured(name, "/s", tuple(rates), tuple(between))]


def _fresh(space: Space | str, data: str, images: int | None) -> ScoredSupernet:
    loaded = load_data(data)
    chosen = load_space(space) if isinstance(space, str) else space
    chosen = chosen.with_input(loaded.size, loaded.channels, loaded.classes)
    return make_scored_supernet(chosen, build_supernet(chosen), loaded, images)
