from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import ray
import torch
from ray.exceptions import RayActorError
from torch import Tensor

from raynas.data.pixels import Normalisation
from raynas.errors import UserError
from raynas.runs.run import Run
from raynas.scoring import supervisor
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool, fitting
from raynas.scoring.replica import WeightsChanged
from raynas.scoring.score_arch import Job
from raynas.space import Arch, Space
from tests.scoring.scoring_parts import Linear, Naughty, make_run

Digits = tuple[Tensor, Tensor, Normalisation]
VOLATILE = {"seconds", "time", "replica"}


def _stable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key not in VOLATILE} for row in rows]


@pytest.mark.usefixtures("ray_session")
def test_replicas_give_the_rows_of_the_local_scorer(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    with LocalScorer(make_run(tmp_path / "local", space), images=60) as local:
        expected = local.score(archs)
    run = make_run(tmp_path / "run", space)
    with ScorePool(run, replicas=2, images=60) as pool:
        names = {name for name in ray.util.list_named_actors() if name.startswith("raynas-replica")}
        assert names == {"raynas-replica-0", "raynas-replica-1"}
        first = pool.score(archs[:7])
        rows = first + pool.score(archs)[7:]
        assert pool.score(archs) == rows
    assert _stable(rows) == _stable(expected)
    stored = run.store.read("scores")
    assert sorted(stored["arch"].to_pylist()) == sorted(arch.id for arch in archs)
    assert run.store.read("correct").num_rows == len(archs)
    with LocalScorer(run, images=60) as again:  # answered from the pool's rows
        assert again.score(archs) == rows


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_archs_that_raise_kill_or_hang_are_rows_and_the_rest_is_scored(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "TRIES", 2)  # each costs the start of a replica
    deeds = {
        archs[1].id: "raise",
        archs[3].id: "memory",
        archs[5].id: "die once",
        archs[7].id: "die, then sleep",
    }
    run = Run(tmp_path / "run", create=True)
    naughty = Naughty(space, deeds, died=tmp_path)
    with ScorePool.from_parts(space, naughty, *digits, store=run.store, replicas=2, time_limit_s=6.0) as pool:
        rows = pool.score(archs)
    assert all((tmp_path / arch.id).exists() for arch in (archs[5], archs[7]))
    why = {index: row["reason"] for index, row in enumerate(rows) if row["status"] == "failed"}
    assert set(why) == {1, 3, 7}
    assert why[1] == "ValueError: this arch is odd" and why[3].startswith("OutOfMemoryError: CUDA out of memory")
    assert why[7] == "2 replicas were lost at it, the last: no answer within 6 s (time_limit_s)"
    assert sorted(run.store.read("scores")["arch"].to_pylist()) == sorted(arch.id for arch in archs)
    with LocalScorer.from_parts(space, Naughty(space), *digits) as local:
        good = [index for index in range(len(archs)) if index not in why]
        expected = local.score([archs[index] for index in good])
    assert [rows[index]["accuracy"] for index in good] == [row["accuracy"] for row in expected]


def _pids(pool: ScorePool) -> dict[str, int]:
    return {member.name: member.pid for member in pool.supervisor.ready}


@pytest.mark.usefixtures("ray_session")
def test_archs_are_pulled_as_there_is_room_and_neither_a_kill_nor_a_call_given_up_loses_any(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path, create=True)
    pulled: set[str] = set()
    others = set(space.decode(space.sample_codes(np.random.default_rng(6), 60))) - set(archs)

    def many() -> Iterator[Arch]:
        for arch in (*archs, *others):
            pulled.add(arch.id)
            yield arch

    naughty = Naughty(space, {arch.id: "slow" for arch in archs})  # at work when they are killed or given up
    with ScorePool.from_parts(space, naughty, *digits, store=run.store, replicas=2) as pool:
        first = next(pool.score_iter(many()))
        assert 1 <= len(pulled) <= 20  # in flight at both, those done within the first group, and one queued: not all
        os.kill(next(iter(_pids(pool).values())), signal.SIGKILL)
        rows = pool.score(archs)
        assert [row["arch"] for row in rows] == [arch.id for arch in archs] and first in rows
        assert {row["status"] for row in rows} == {"ok"}
        unknown = [arch for arch in others if arch.id not in pulled][:3]
        missing = {archs[0].id, *(arch.id for arch in unknown)}
        for row in pool.score_iter(itertools.cycle([archs[0], *unknown])):  # after these it brings nothing new
            missing.discard(row["arch"])
            if not missing:
                break
    assert "was lost (its process has ended: it was killed" in caplog.text
    stored = run.store.read("scores")["arch"].to_pylist()
    assert len(set(stored)) == len(stored) and {arch.id for arch in archs} <= set(stored)
    assert set(stored) <= pulled | {arch.id for arch in (*archs, *unknown)}


@pytest.mark.usefixtures("ray_session")
def test_blocks_that_an_interrupted_call_left_are_no_whole_scores(
    space: Space, archs: list[Arch], digits: Digits
) -> None:
    archs = archs[:8]
    naughty = Naughty(space, {arch.id: "slow" for arch in archs})
    with LocalScorer.from_parts(space, Naughty(space), *digits) as local:
        expected = [row["accuracy"] for row in local.score(archs)]
        blocks = local.score_block(archs, 0, 10)
    with ScorePool.from_parts(space, naughty, *digits, replicas=1) as pool:
        pool.score_block(archs[:1], 0, 10)
        interrupted = pool._outcomes(Job(arch, (0, 10)) for arch in archs)
        next(interrupted)
        interrupted.close()  # type: ignore[attr-defined]
        assert pool.supervisor.in_flight()
        assert [row["accuracy"] for row in pool.score(archs)] == expected
        for found, block in zip(pool.score_block(archs, 0, 10), blocks, strict=True):
            np.testing.assert_array_equal(found, block)


def test_a_task_s_time_is_limited_by_the_slowest_of_its_kind(space: Space, archs: list[Arch]) -> None:
    watched = supervisor.Supervisor(0, lambda name: None, space, None, 60.0, "1 CPU")
    whole, block, proxy = Job(archs[0]), Job(archs[0], (0, 64)), Job(archs[0], proxy="dss")
    assert watched.limit_s([whole]) == 1800
    watched._slowest = {supervisor._kind(proxy): 0.1, supervisor._kind(block): 0.5 / 64}
    assert watched.limit_s([proxy]) == 62 and watched.limit_s([whole]) == 1800
    assert watched.limit_s([block]) == 70
    assert watched.limit_s([Job(archs[0], (64, 50_000))]) > 20 * 0.5 / 64 * 49_000  # as many more images as it has


@pytest.mark.usefixtures("ray_session")
def test_a_write_to_shared_weights_is_found_out_and_its_score_is_not_kept(
    tmp_path: Path, space: Space, archs: list[Arch], digits: Digits
) -> None:
    run = Run(tmp_path, create=True)
    pool = ScorePool.from_parts(space, Naughty(space, {archs[4].id: "write"}), *digits, store=run.store, replicas=1)
    with pytest.raises(WeightsChanged, match=r"wrote to its own weights or images while it was scored: net\."), pool:
        pool.score(archs[4:5])
    assert run.store.read("scores").num_rows == 0


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_change_that_comes_between_tasks_is_found_out_at_the_end(space: Space, archs: list[Arch]) -> None:
    pixels = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)
    pool = ScorePool.from_parts(space, Linear(1), pixels, torch.zeros(8, dtype=torch.int64), replicas=1)
    with pytest.raises(WeightsChanged, match="pixels"), pool:
        pool.score(archs[:1])
        mapped = ray.get(pool._shared_images[0][0])["pixels"]
        torch.from_dlpack(mapped).add_(1)


@pytest.mark.usefixtures("ray_session")
def test_replicas_map_weights_and_images_and_hold_no_copies(space: Space, archs: list[Arch]) -> None:
    labels = torch.zeros(2**19, dtype=torch.int64)
    pixels = torch.zeros(2**19, 1, 8, 8, dtype=torch.uint8)  # 32 MB
    used: dict[str, list[int]] = {}
    for name, megabytes, images, replicas in (("light", 1, 2, 1), ("heavy", 48, 2**19, 2)):
        options: dict[str, Any] = {"replicas": replicas, "batch_size": 2**14}
        few = (pixels[:images], labels[:images])
        with ScorePool.from_parts(space, Linear(megabytes), *few, **options) as pool:
            pool.supervisor.wait_for_all()
            pool.supervisor.ask_all(lambda actor: actor.verify.remote(), 60.0)  # reads every page
            used[name] = [psutil.Process(pid).memory_full_info().uss for pid in _pids(pool).values()]
    assert len(used["heavy"]) == 2
    assert max(used["heavy"]) - used["light"][0] < 24 * 2**20  # of 84 MB that each of them maps


@pytest.mark.usefixtures("ray_session")
def test_no_room_for_a_replica_is_an_error_and_not_a_hang(space: Space, archs: list[Arch], digits: Digits) -> None:
    pool = ScorePool.from_parts(space, Naughty(space), *digits, threads=64, start_limit_s=1.5)
    with (
        pytest.raises(UserError, match=r"no replica could start within 2 s: each needs 64 CPU, .* of 4 CPUs free"),
        pool,
    ):
        pool.score(archs)


@pytest.mark.usefixtures("ray_session")
def test_a_replica_that_waits_while_others_score_is_told(
    space: Space, archs: list[Arch], digits: Digits, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "TELL_S", 0.0)
    with ScorePool.from_parts(space, Naughty(space), *digits, replicas=2, threads=3) as pool:
        pool.score(archs[:2])
        monkeypatch.setattr(supervisor, "SELDOM_S", 0.2)
        caplog.clear()
        pool.supervisor._tell_at = 0.0
        pool.score(archs[2:])
    lines = [record.getMessage() for record in caplog.records]
    assert lines and {*lines} == {lines[0]}
    assert lines[0].startswith(
        "waiting for 1 of 2 replicas to start: each needs 3 CPU, the cluster has 1 of 4 CPUs free"
    )


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    run = Run(tmp_path, create=True)
    for wrong in ({"replicas": 0}, {"threads": 0}, {"gpus": -1.0}, {"time_limit_s": 0.0}, {"batch_size": 0}):
        with pytest.raises(UserError):
            ScorePool(run, **wrong)  # type: ignore[arg-type]


@ray.remote(num_cpus=0, max_retries=0)
def lose_node() -> None:
    raise RayActorError(error_msg="The actor died unexpectedly ...\nThe actor died because its node has died.")


class OnLostNodes:
    """A replica whose node is lost as it starts, or at its first task."""

    def __init__(self, starts: bool = False):
        self.ready = SimpleNamespace(remote=lambda: ray.put(("node", 1, "cpu")) if starts else lose_node.remote())
        self.score = self.gpu_use = SimpleNamespace(remote=lambda *_: lose_node.remote())


class Sound:
    """A replica that scores nothing and tells of a GPU that this machine need not have."""

    def __init__(self, used: int = 1, total: int = 10):
        self.ready = SimpleNamespace(remote=lambda: ray.put(("node", 1, "cpu")))
        self.score = SimpleNamespace(remote=lambda jobs: ray.put([(None, "scored") for _ in jobs]))
        use = (used, total) if used else OSError("CUDA out of memory")
        self.gpu_use = SimpleNamespace(remote=lambda: tell.remote(use))


@ray.remote(num_cpus=0, max_retries=0)
def tell(what: Any) -> Any:
    if isinstance(what, Exception):
        raise what
    return what


def supervised(space: Space, size: int, actors: list[Any]) -> supervisor.Supervisor:
    """A supervisor of such actors, started in this order."""
    return supervisor.Supervisor(size, lambda name: actors.pop(0), space, None, 60.0, "1 CPU")


@pytest.fixture
def no_actors(ray_session: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "kill", lambda *_, **__: None)


@pytest.mark.usefixtures("no_actors")
def test_lost_nodes_shrink_no_pool_and_are_no_fault_of_archs(space: Space, archs: list[Arch]) -> None:
    lost = supervisor.TRIES + 1
    pool = supervised(space, 2, [Sound(), *(OnLostNodes() for _ in range(lost)), OnLostNodes(starts=True), Sound()])
    pool.wait_for_all()
    assert len(pool.ready) == 2
    pool = supervised(space, 1, [*(OnLostNodes(starts=True) for _ in range(lost)), Sound()])
    pool.feed(iter([Job(archs[0])]))
    outcomes: list[Any] = []
    while not outcomes:
        pool.feed(iter([]))
        outcomes = pool.poll(1.0)
    assert [outcome.reason for outcome in outcomes] == ["scored"]


@pytest.mark.usefixtures("no_actors")
def test_an_arch_at_which_node_after_node_is_lost_is_a_failed_row(space: Space, archs: list[Arch]) -> None:
    """It shares its task with two others at first, which are scored."""

    class LosesItsNode(OnLostNodes):
        """A replica whose node is lost at one of the archs."""

        def __init__(self) -> None:
            super().__init__(starts=True)
            self.score = SimpleNamespace(remote=self._score)

        def _score(self, sent: list[Any]) -> Any:
            lost.extend([1] * (bad := any(values == dict(archs[1]) for values, *_ in sent)))
            return lose_node.remote() if bad else ray.put([(None, "scored") for _ in sent])

    lost: list[int] = []
    pool = supervisor.Supervisor(1, lambda name: LosesItsNode(), space, None, 60.0, "1 CPU")
    pool._queue.append([Job(arch) for arch in archs[:3]])
    found: dict[str, Any] = {}
    while len(found) < 3:
        pool.feed(iter([]))
        found |= {outcome.arch.id: outcome.reason for outcome in pool.poll(1.0)}
    assert found == {archs[0].id: "scored", archs[1].id: "5 nodes were lost at it", archs[2].id: "scored"}
    assert len(lost) == supervisor.NODES


@pytest.mark.usefixtures("no_actors")
def test_as_many_replicas_share_a_gpu_as_its_memory_holds(space: Space) -> None:
    def found(*actors: Any) -> int:
        left = list(actors)
        return fitting(lambda: supervised(space, 1, left), 60.0)

    assert [found(Sound(*of)) for of in ((10, 100), (30, 100), (95, 100), (1, 1000))] == [9, 3, 1, 32]
    assert found(OnLostNodes(), OnLostNodes(starts=True), Sound(30, 100)) == 3
    with pytest.raises(UserError, match=r"could not be measured: .*CUDA out of memory"):
        found(Sound(0, 100))
    with pytest.raises(UserError, match=r"could not be measured: its node was lost"):
        found(*(OnLostNodes(starts=True) for _ in range(supervisor.TRIES)))
