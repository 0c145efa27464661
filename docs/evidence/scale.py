"""The scoring pool with 10, 100 and 1,000 replicas, simulated: how many of them are busy, and what the driver does.

    python docs/evidence/scale.py            print the tables of docs/speed.md: about two minutes
    python docs/evidence/scale.py measure    measure what the simulation takes as the driver's costs, with a local Ray

The scheduling is the pool's own code (`ScorePool`, `Supervisor`), driven by a clock that only the simulation moves. Ray
and the replicas are replaced: a replica takes as long as the MACs of its archs say, with a spread, and Ray's calls and
the driver's work move the clock by `Costs`. `measure` also scores with four real replicas that only sleep,
and simulates the same.

Weights and images reach the nodes before that: the last table is arithmetic on their sizes.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch

from raynas.cluster.metrics import Rate
from raynas.costs import cost
from raynas.data.pixels import Normalisation
from raynas.nets import build_supernet
from raynas.results import RunDir
from raynas.scoring import pool as pool_module
from raynas.scoring import supervisor as supervisor_module
from raynas.scoring.pool import ScorePool
from raynas.scoring.score_arch import Job, Score
from raynas.scoring.score_table import ScoredArch
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.scoring.supervisor import Supervisor
from raynas.space import Arch, load_space


@dataclass(frozen=True)
class Costs:
    """Seconds of the driver's processor, a little more than `measure` found beside other work.

    Attributes:
        task: a task, sent and received.
        row: an arch's row, made and written.
        poll: a look at all replicas,
        watched: and more of it for each reference that Ray waits for.
        round_trip: from sending a task to its begin, and from its end to the driver's notice: not measured.
    """

    task: float = 1.1e-3
    row: float = 0.25e-3
    poll: float = 0.75e-3
    watched: float = 1e-6
    round_trip: float = 1e-3


# -- the simulated cluster ---------------------------------------------------------------------------------------------


class Clock:
    """Seconds since the simulation began; `time.monotonic` of the pool's modules."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass(eq=False)
class _Ref:
    done: float
    value: Any


class _Replica:
    """A replica: its tasks follow each other, and take as long as their archs."""

    def __init__(self, cluster: Cluster, name: str):
        self._cluster = cluster
        self._free = 0.0
        self.busy: list[tuple[float, float]] = []
        self.ready = SimpleNamespace(remote=lambda: _Ref(0.0, (name, 0, "simulated")))
        self.score = SimpleNamespace(remote=self._score)

    def _score(self, sent: Sequence[tuple[Any, ...]]) -> _Ref:
        cluster = self._cluster
        cluster.spend(cluster.costs.task / 2)
        seconds = [cluster.seconds[repr(values)] for values, *_ in sent]
        begins = max(self._free, cluster.clock.now + cluster.costs.round_trip)
        self._free = begins + sum(seconds)
        self.busy.append((begins, self._free))
        scores = [(Score(np.ones(8, dtype=bool), None, 0.0, each), None) for each in seconds]
        return _Ref(self._free + cluster.costs.round_trip, scores)


@dataclass
class Cluster:
    """What replaces Ray in the supervisor: `wait`, `get` and `kill` by the clock.

    Attributes:
        seconds: what each arch takes, by the text of its values.
        driver: seconds that the driver has worked.
    """

    costs: Costs
    seconds: dict[str, float]
    clock: Clock = field(default_factory=Clock)
    driver: float = 0.0
    replicas: list[_Replica] = field(default_factory=list)

    def spend(self, seconds: float) -> None:
        self.driver += seconds
        self.clock.now += seconds

    def start(self, name: str) -> _Replica:
        self.replicas.append(_Replica(self, name))
        return self.replicas[-1]

    def wait(self, refs: Sequence[_Ref], num_returns: int, timeout: float) -> tuple[list[_Ref], list[_Ref]]:
        self.spend((self.costs.poll + self.costs.watched * len(refs)) / 2)
        enough = sorted(ref.done for ref in refs)[num_returns - 1]
        self.clock.now = max(self.clock.now, min(enough, self.clock.now + timeout))
        return [ref for ref in refs if ref.done <= self.clock.now], []

    def get(self, ref: _Ref, timeout: float) -> Any:
        self.spend(self.costs.task / 2)
        return ref.value

    def busy(self, first: float, last: float) -> float:
        """Return the share of the replicas' time between two moments in which they scored."""
        spans = (span for replica in self.replicas for span in replica.busy)
        return sum(max(0.0, min(last, end) - max(first, begin)) for begin, end in spans) / (
            len(self.replicas) * (last - first)
        )


class SimulatedPool(ScorePool):
    """The pool on a simulated cluster; its rows stay in memory."""

    cluster: Cluster

    def _start(self, scored: ScoredSupernet) -> None:
        self.supervisor = Supervisor(self.replicas, self.cluster.start, scored.space, None, 60.0, "1 CPU")
        self._finished = []
        self._subnets, self._best, self._rate = 0, 0.0, Rate()

    def _finish(self) -> None:
        pass

    def _outcomes(self, jobs: Iterator[Job | None]) -> Iterator[list[ScoredArch]]:
        for outcomes in super()._outcomes(jobs):
            self.cluster.spend(self.cluster.costs.row * len(outcomes))
            yield outcomes


@dataclass(frozen=True)
class Found:
    """What a simulation gave: shares of time, archs a second, and seconds in all."""

    busy: float
    driver: float
    rate: float
    total: float


def random_archs(count: int, mean: float, seed: int) -> dict[Arch, float]:
    """Return archs of `digits/vit`, each with its seconds: its share of a mean by its MACs, with a deviation of 18 %.

    The deviation (log-normal) is that of stored scores on a shared machine.
    """
    space = load_space("digits/vit")
    rng = np.random.default_rng(seed)
    archs = list(dict.fromkeys(space.decode(space.sample_codes(rng, 2 * count))))[:count]
    macs = cost(space, archs)["macs"].astype(np.float64)
    seconds = mean * macs / macs.mean() * rng.lognormal(-(0.18**2) / 2, 0.18, len(macs))
    return dict(zip(archs, seconds.tolist(), strict=True))


def parts(images: int = 8) -> tuple[Any, Any, Any, Any, Any]:
    """Return a space, its supernet, images, labels and their normalisation: nothing is computed with them."""
    space = load_space("digits/vit")
    pixels, labels = torch.zeros((images, 1, 8, 8), dtype=torch.uint8), torch.zeros(images, dtype=torch.int64)
    return space, build_supernet(space), pixels, labels, Normalisation((0.0,), (1.0,))


def simulate(replicas: int, mean: float, archs: int, batch: int | None, costs: Costs, seed: int = 0) -> Found:
    """Score random archs on a simulated cluster.

    Args:
        mean: mean seconds of an arch.
        batch: archs in one call, of which all must be back before the next; None for one call without an end, of which
            the middle counts.
    """
    chosen = random_archs(archs, mean, seed)
    cluster = Cluster(costs, {repr(dict(arch)): each for arch, each in chosen.items()})
    pool = SimulatedPool.from_parts(*parts(), replicas=replicas)
    pool.cluster = cluster
    with clocked(cluster), pool:
        first = last = 0.0
        if batch is None:
            for count, _ in enumerate(pool.score_iter(iter(chosen))):
                if count == len(chosen) // 4:
                    first = cluster.clock.now
                if count <= len(chosen) * 0.6:
                    last = cluster.clock.now
        else:
            for start in range(0, len(chosen), batch):
                pool.score(list(chosen)[start : start + batch])
            last = cluster.clock.now
        total = cluster.clock.now
    busy = cluster.busy(first, last)
    return Found(busy, cluster.driver / total, busy * replicas / float(np.mean(list(chosen.values()))), total)


@contextmanager
def clocked(cluster: Cluster) -> Iterator[None]:
    """Let the pool's modules use a simulated clock and cluster."""
    real = pool_module.time, supervisor_module.time, supervisor_module.ray
    pool_module.time = supervisor_module.time = cluster.clock  # type: ignore[assignment]
    supervisor_module.ray = cluster  # type: ignore[assignment]
    try:
        yield
    finally:
        pool_module.time, supervisor_module.time, supervisor_module.ray = real  # type: ignore[assignment]


def simulations(costs: Costs) -> None:
    """Print the table of simulated pools."""
    print(
        "| replicas | an arch takes | busy | archs/s | driver busy | busy in batches of 50 | of 16 for each replica |"
    )
    print("|---|---|---|---|---|---|---|")
    for replicas in (10, 100, 1000):
        for mean in (0.03, 1.0, 10.0):
            archs = min(20_000, max(1000, replicas * (400 if mean < 0.1 else 20)))
            stream = simulate(replicas, mean, archs, None, costs)
            fifty = simulate(replicas, mean, min(archs, 1000), 50, costs)
            many = simulate(replicas, mean, archs, max(50, 16 * replicas), costs)
            cells = [
                f"{replicas:,}",
                f"{mean:g} s",
                f"{stream.busy:.1%}",
                f"{stream.rate:,.1f}",
                f"{stream.driver:.0%}",
            ]
            print(f"| {' | '.join([*cells, f'{fifty.busy:.1%}', f'{many.busy:.1%}'])} |", flush=True)


NETWORK = 1.25e9  # bytes a second of a node's network (10 Gbit/s): an assumption
IMAGES = 10_000 * 3 * 224 * 224  # bytes of 10,000 decoded images: an assumption


def broadcasts() -> None:
    """Print what it takes to bring weights and images to 125 nodes."""
    print("| supernet | weights | with images, to 125 nodes one by one | from node to node |")
    print("|---|---|---|---|")
    for name in ("digits/vit", "autoformer/tiny", "autoformer/small", "autoformer/base", "nasvit/released"):
        with torch.device("meta"):
            weights = sum(4 * tensor.numel() for tensor in build_supernet(load_space(name)).parameters())
        once = (weights + (0 if name.startswith("digits") else IMAGES)) / NETWORK
        # A node that has a copy sends it on, so that the number of copies doubles.
        print(
            f"| `{name}` | {weights / 1e6:,.0f} MB | {125 * once:,.1f} s | {math.ceil(math.log2(126)) * once:,.1f} s |"
        )


# -- what the driver's work costs --------------------------------------------------------------------------------------


class Sleeper:
    """A real Ray actor in a replica's place, which sleeps for as long as it is told."""

    def __init__(self, seconds: dict[str, float], images: int):
        self._seconds, self._images = seconds, images

    def ready(self) -> tuple[str, int, str]:
        return ray.get_runtime_context().get_node_id(), 0, "none"

    def score(self, sent: Sequence[tuple[Any, ...]]) -> list[tuple[Score, None]]:
        seconds = [self._seconds.get(repr(values), 0.0) for values, *_ in sent]
        if total := sum(seconds):
            time.sleep(total)
        bits = np.ones(self._images, dtype=bool)
        return [(Score(bits, bits, 0.0, each or 1e-4), None) for each in seconds]  # never 0: tasks are cut by them


class SleepingPool(SimulatedPool):
    """The pool over actors that sleep."""

    seconds: dict[str, float]

    def _start(self, scored: ScoredSupernet) -> None:
        actor = ray.remote(Sleeper).options(num_cpus=0)

        def start(name: str) -> Any:
            return actor.remote(self.seconds, len(scored.images))

        self.cluster = Cluster(Costs(), {})
        self.supervisor = Supervisor(self.replicas, start, scored.space, None, 60.0, "nothing")
        self._finished, self._subnets, self._best, self._rate = [], 0, 0.0, Rate()
        self._stack.callback(self.supervisor.end)


def worked(archs: int, task: int, folder: str) -> tuple[float, float]:
    """Return the processor and wall seconds of the driver for archs that take no time, in tasks of so many."""
    chosen = list(random_archs(archs + 8, 1.0, seed=0))
    pool = SleepingPool.from_parts(*parts(1000), replicas=2, store=RunDir(folder, create=True).store)
    pool.seconds = {}
    real = supervisor_module.TASK_ARCHS
    supervisor_module.TASK_ARCHS = task
    try:
        with pool:
            pool.supervisor.wait_for_all()
            pool.score(chosen[:8])
            began, wall = time.process_time(), time.perf_counter()
            pool.score(chosen[8:])
            return time.process_time() - began, time.perf_counter() - wall
    finally:
        supervisor_module.TASK_ARCHS = real


def watched(count: int) -> float:
    """Return the processor seconds of waiting for many references, twice, as the supervisor does at each look."""

    @ray.remote(num_cpus=0)
    class Silent:
        def score(self) -> None:
            time.sleep(600)

    actor: Any = Silent.remote()  # type: ignore[attr-defined]
    refs = [actor.score.remote() for _ in range(count)]
    began = time.process_time()
    for _ in range(20):
        ray.wait(refs, num_returns=1, timeout=0)
    spent = (time.process_time() - began) / 10
    ray.kill(actor)
    return spent


def measure() -> None:
    """Print the driver's costs on this machine, and a real pool beside its simulation."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        one, _ = worked(600, 1, f"{folder}/one")
        many, _ = worked(2400, 64, f"{folder}/many")
    row = (many - one * (2400 / 64) / 600) / (2400 - 2400 / 64)
    few, all_ = watched(4), watched(2000)
    per = (all_ - few) / 1996
    costs = Costs(task=one / 600 - row, row=row, poll=few, watched=per)
    print({name: f"{1e3 * value:.3f} ms" for name, value in vars(costs).items()})
    for mean in (0.02, 0.1):
        chosen = random_archs(round(20 / mean), mean, seed=1)
        pool = SleepingPool.from_parts(*parts(1000), replicas=4)
        pool.seconds = {repr(dict(arch)): each for arch, each in chosen.items()}
        with pool:
            pool.supervisor.wait_for_all()
            began = time.perf_counter()
            pool.score(list(chosen))
            real = time.perf_counter() - began
        simulated = simulate(4, mean, len(chosen), len(chosen), costs, seed=1).total
        print(f"{len(chosen)} archs of {mean:g} s on 4 replicas: {real:.2f} s, simulated {simulated:.2f} s")
    ray.shutdown()


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    else:
        simulations(Costs())
        broadcasts()
