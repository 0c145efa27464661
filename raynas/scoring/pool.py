"""Scoring by frozen replicas in Ray actors."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import ray
from ray.exceptions import RayError

from raynas.arguments import checked
from raynas.cluster.connection import is_local, ray_cluster
from raynas.cluster.growth import WAIT_S
from raynas.cluster.losses import NODE_LOST, why_lost
from raynas.cluster.metrics import Rate, set_gauge
from raynas.cluster.resources import MOST_PER_GPU, Resources
from raynas.data.calibration import calibration_bytes
from raynas.errors import UserError, reason
from raynas.results import Store
from raynas.runs.run import Run
from raynas.scoring.replica import Options, Replica, WeightsChanged
from raynas.scoring.score_arch import BATCH, Job
from raynas.scoring.score_table import ScoredArch
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.scoring.scorer import COMMIT_ROWS, COMMIT_S, Scorer
from raynas.scoring.shared_images import share, share_calibration
from raynas.scoring.shared_weights import checksums, take_apart
from raynas.scoring.supervisor import FIRST_S, TRIES, Supervisor

log = logging.getLogger(__name__)

RAYS_UNITS = 10_000  # parts of a GPU that Ray counts in
FILLED = 0.9  # share of a GPU's memory that replicas may fill
START_S = 300.0  # for the first replica on this machine
DECODING_S = 0.1  # for an image that a replica decodes, at the longest
VERIFY_S = 300.0  # for checksums of everything at the end


class ScorePool(Scorer):
    """A scorer with several replicas in Ray actors; a context manager that starts and ends them.

    Weights and decoded images are in Ray's object store, once on each node, and replicas map them; images for which a
    node's store has no room are decoded by the replicas, anew for each arch. A replica that dies or hangs is replaced,
    and its archs are scored again. An arch that breaks three replicas gets a failed row.

    Args:
        run: a run directory with a trained supernet.
        replicas: number of replicas.
        batch_size: images in one forward pass.
        threads: torch threads (and Ray CPUs) of one replica; scores do not depend on the number of replicas.
        gpus: Ray GPUs of one replica, or a fraction of one; 0 for CPU.
        per_gpu: replicas that share a GPU, with `gpus` 1: a number, or `fit` for as many as its memory holds, measured
            with a first replica that scores the largest subnet.
        images: number of images of the search split; by default all.
        precision: fp32, or bf16 or fp16 by autocast.
        time_limit_s: seconds without an answer after which a replica counts as hung; by default 60 s and 20 times the
            slowest arch so far (30 minutes before the first).
        start_limit_s: longest wait in seconds while no replica can be started; by default 5 minutes on this machine,
            and 30 on a cluster, which may grow.

    Attributes:
        supervisor: the replicas' supervisor; only inside the context.

    Raises:
        UserError: an argument is out of range.
        RunDirError: `run` is not a run directory.
    """

    supervisor: Supervisor

    @checked()
    def __init__(
        self,
        run: Run | str | os.PathLike[str] | None,
        replicas: int = 2,
        batch_size: int = BATCH,
        threads: int = 1,
        gpus: float = 0.0,
        per_gpu: int | Literal["fit"] = 1,
        images: int | None = None,
        precision: str = "fp32",
        time_limit_s: float | None = None,
        start_limit_s: float | None = None,
        *,
        scored: ScoredSupernet | None = None,
        store: Store | None = None,
    ):
        super().__init__(run, scored, store, batch_size, images, precision)
        if replicas < 1:
            raise UserError(f"replicas must be at least 1, not {replicas}: raynas.LocalScorer(run) scores without Ray")
        if threads < 1:
            raise UserError(f"threads must be at least 1, not {threads}")
        if per_gpu != 1:
            Resources(gpus=gpus, per_gpu=per_gpu)  # refuses what cannot be
        if gpus < 0 or any(limit is not None and limit <= 0 for limit in (time_limit_s, start_limit_s)):
            raise UserError("gpus must not be negative, time_limit_s and start_limit_s must be above 0")
        self.replicas = replicas
        self.threads = threads
        self.gpus = gpus
        self.per_gpu = per_gpu
        self.time_limit_s = time_limit_s
        self.start_limit_s = start_limit_s

    def _start(self, scored: ScoredSupernet) -> None:
        self._stack.enter_context(ray_cluster(cpus=self.replicas * self.threads))
        limit_s = self.start_limit_s or (START_S if is_local() else WAIT_S)
        skeleton, weights = take_apart(scored.supernet)
        others = {"labels": scored.images.labels}
        given, images = scored.calibration, scored.images
        self._calibration = None if given is None else share_calibration(given, limit_s)
        beside = sum(array.nbytes for array in weights.values())
        if given is not None:
            beside += calibration_bytes(given.config, images.geometry.channels, images.geometry.size)
        parts = share(images, self.batch_size, self.replicas, limit_s, beside)
        self._shared_images: Any = ray.put(images) if parts is None else parts
        first_limit_s = FIRST_S + (DECODING_S * len(images) if parts is None else 0.0)
        shared = (
            scored.space,
            ray.put(skeleton),
            ray.put(weights),
            ray.put(others),
            scored.normalisation,
            (checksums(weights), checksums(others)),
            Options(self.batch_size, self.threads, self.precision, self.gpus > 0),
            self._shared_images,
            [] if self._calibration is None else [self._calibration],
        )

        def start(name: str, gpus: float) -> Any:
            # The supervisor replaces a lost replica, not Ray, since it knows which archs the replica was scoring.
            options = {"num_cpus": self.threads, "num_gpus": gpus, "max_restarts": 0, "max_task_retries": 0}
            # On any node, even if this process is in a placement group, as a trial of Ray Tune is.
            anywhere = {"name": name, "scheduling_strategy": "DEFAULT"}
            return ray.remote(Replica).options(**anywhere, **options).remote(name, *shared)

        def supervisor(replicas: int, gpus: float, ending: str = "") -> Supervisor:
            needs = f"{self.threads} CPU" + (f" and {gpus:g} GPU" if gpus else "")
            actors = (replicas, lambda name: start(name + ending, gpus), scored.space)
            return Supervisor(*actors, self.time_limit_s, limit_s, needs, first_limit_s)

        per_gpu = self.per_gpu
        if per_gpu == "fit":
            per_gpu = fitting(lambda: supervisor(1, 1.0, "-alone"), limit_s)
        self.supervisor = supervisor(
            self.replicas, self.gpus if per_gpu == 1 else math.floor(RAYS_UNITS / per_gpu) / RAYS_UNITS
        )
        self._finished: list[ScoredArch] = []
        self._subnets, self._best = 0, 0.0  # scored so far, and the best accuracy of these
        self._rate = Rate()
        self._stack.callback(self.supervisor.end)

    def _finish(self) -> None:
        if names := self.supervisor.verify(VERIFY_S):
            raise WeightsChanged(sorted(set(names)))

    def _outcomes(self, jobs: Iterator[Job | None]) -> Iterator[list[ScoredArch]]:
        # Archs that an abandoned call left in flight are written too, but returned to nobody.
        stray = self.supervisor.in_flight() | {outcome.job.key for outcome in self._finished}
        wanted = (job for job in jobs if job is None or job.key not in stray)
        written = time.monotonic()
        try:
            while True:
                self.supervisor.feed(wanted)
                if self.supervisor.idle:
                    yield self._taken()
                    if self.supervisor.ended:
                        return
                    continue
                self._note(outcomes := self.supervisor.poll(COMMIT_S))
                self._finished += outcomes
                if len(self._finished) >= COMMIT_ROWS or time.monotonic() - written > COMMIT_S:
                    yield self._taken()
                    written = time.monotonic()
        finally:
            self.supervisor.forget_queue()

    def _note(self, outcomes: list[ScoredArch]) -> None:
        """Show the pool's state in Ray's metrics."""
        name = "a pool" if self.run is None else self.run.name
        jobs = [outcome.job for outcome in outcomes if outcome.job.proxy is None]
        self._subnets += sum(job.block is None or job.block[1] == self.image_count for job in jobs)
        scores = [float(each.score.top1.mean()) for each in outcomes if each.score and each.job.block is None]
        self._best = max([self._best, *scores])
        ready = self.supervisor.ready
        set_gauge("replicas", len(ready), name)
        set_gauge("busy_replicas", sum(bool(member.tasks) for member in ready), name)
        set_gauge("subnets", self._subnets, name)
        set_gauge("scores_per_s", self._rate.at(self._subnets), name)
        set_gauge("best_accuracy", self._best, name)

    def _taken(self) -> list[ScoredArch]:
        taken, self._finished = self._finished, []
        return taken


def fitting(start: Callable[[], Supervisor], limit_s: float) -> int:
    """Return how many replicas fit on a GPU by the memory that one uses, at least one.

    Args:
        start: starts the supervisor of one replica that has a GPU to itself; it is ended here. A replica that is lost
            with its node is started once more.
        limit_s: longest wait for the replica's answer in seconds.

    Raises:
        UserError: it could not start, or cannot score the largest subnet.
    """
    for attempt in range(1, TRIES + 1):
        alone = start()
        try:
            alone.wait_for_all()
            [(used, total)] = alone.ask_all(lambda replica: replica.gpu_use.remote(), limit_s)
            break
        except (RayError, TimeoutError) as error:
            why = why_lost(str(error)) or reason(getattr(error, "cause", None) or error)
            if why != NODE_LOST or attempt == TRIES:
                raise UserError(f"the memory of a replica on a GPU could not be measured: {why}") from error
            log.warning("the replica that measures its memory was lost (%s); another takes its place", why)
        finally:
            alone.end()
    count = max(1, min(MOST_PER_GPU, int(FILLED * total / used)))
    log.warning(f"a replica takes {used / 1e9:.1f} of a GPU's {total / 1e9:.1f} GB: {count} share one")
    return count
