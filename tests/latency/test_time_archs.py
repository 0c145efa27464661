"""Timings as rows: each arch once on each device, whoever times."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private.worker import Worker
from ray.exceptions import RayActorError
from ray.util.placement_group import placement_group, remove_placement_group

import raynas.latency.measured as measure
from raynas.errors import RunDirError, UserError
from raynas.latency.measured import time_archs
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.rows import Latencies, TimedArch, on_of
from raynas.latency.stopwatch import RemoteStopwatch, Stopwatch, stopwatch
from raynas.latency.stored import archs_to_time, fit_predictor, stored_predictor
from raynas.latency.timing import Conditions, TimedOn, Timing, timed_on
from raynas.runs.run import Run
from raynas.space import Arch, load_space

SPACE = load_space("digits/vit")
QUICK = Conditions(seconds=0.001)
ARCHS = archs_to_time(SPACE, 5)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", create=True)


def put(run: Run, archs: list[Arch], on: TimedOn, ms: float = 5.0) -> None:
    """Rows as if the archs had been timed."""
    times = [ms + 0.01 * index for index in range(len(archs))]
    timings = [Timing(on, ms, (ms, ms), 9, ms / 2.0) for ms in times]
    outcomes = [TimedArch(arch, timing, None, "elsewhere") for arch, timing in zip(archs, timings, strict=True)]
    Latencies(run.store, on).commit(outcomes)


def test_archs_to_time_are_a_growing_list() -> None:
    archs = archs_to_time(SPACE, 300)
    assert len(set(archs)) == 300 and archs[:5] == ARCHS
    assert archs[:2] == [SPACE.smallest(), SPACE.largest()]
    one = SPACE.fix(SPACE.largest())
    assert archs_to_time(one, 20) == [one.largest()]


def test_rows_say_what_was_measured_and_are_measured_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ARCHS[0], ARCHS[1], ARCHS[0]]
    rows = time_archs(run.store, asked, QUICK, predicted_ms=[1.0, 2.0, 1.0])
    assert [row["arch"] for row in rows] == [arch.id for arch in asked]
    stored = run.store.read("latencies").to_pylist()
    assert [row["arch"] for row in stored] == [arch.id for arch in asked[:2]]
    on = timed_on(QUICK)
    for row, predicted in zip(stored, (1.0, 2.0), strict=True):
        assert on_of(row) == on and row["status"] == "ok" and row["predicted_ms"] == predicted
        assert 0 < row["ms_q1"] <= row["ms"] <= row["ms_q3"] and row["passes"] >= 5 and row["ratio"] > 0
        assert row["images_per_s"] == pytest.approx(1000 / row["ms"]) and row["space"] == SPACE.fingerprint
    timed = count(monkeypatch)
    again = time_archs(run.store, [*asked, ARCHS[2]], QUICK)
    assert timed == [ARCHS[2]] and [row["ms"] for row in again[:3]] == [row["ms"] for row in rows]


def count(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[Arch]:
    """The archs that are truly timed from now on."""
    timed: list[Arch] = []
    real = Stopwatch.time

    def time(self: Stopwatch, arch: Arch) -> TimedArch:
        if len(timed) == stop_after:
            raise KeyboardInterrupt
        timed.append(arch)
        return real(self, arch)

    monkeypatch.setattr(Stopwatch, "time", time)
    return timed


@pytest.mark.parametrize(
    "change", [{"device": "another"}, {"batch_size": 3}, {"dtype": "bf16"}, {"threads": 7}, {"torch": "1.0"}]
)
def test_what_was_timed_elsewhere_is_timed_again(
    run: Run, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = timed_on(QUICK)
    put(run, ARCHS, here.model_copy(update=change))
    put(run, ARCHS[:1], here)
    timed = count(monkeypatch)
    rows = time_archs(run.store, ARCHS[:2], QUICK)
    assert timed == ARCHS[1:2] and rows[0]["ms"] == 5.0 and rows[1]["host"] != "elsewhere"


def test_the_same_choices_in_another_space_are_another_network(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = SPACE.smallest(), SPACE.with_input(size=(16, 16)).smallest()
    assert small == large
    put(run, [large], timed_on(QUICK))
    timed = count(monkeypatch)
    time_archs(run.store, [small], QUICK)
    assert timed == [small]
    rows = time_archs(None, [small, large], QUICK)
    assert [row["space"] for row in rows] == [small.space.fingerprint, large.space.fingerprint]


def test_stopped_and_called_again_nothing_is_timed_twice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "COMMIT_S", 0.0)
    first = count(monkeypatch, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        time_archs(run.store, ARCHS, QUICK)
    monkeypatch.undo()
    second = count(monkeypatch)
    lines: list[str] = []
    rows = time_archs(run.store, ARCHS, QUICK, progress=lines.append)
    assert [*first, *second] == ARCHS and len(rows) == 5
    assert run.store.read("latencies")["arch"].to_pylist() == [arch.id for arch in ARCHS]


def test_on_another_device_than_before_nothing_is_timed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    there = timed_on(QUICK).model_copy(update={"device": "a phone"})
    put(run, ARCHS[:2], there)
    timed = count(monkeypatch)
    assert [row["ms"] for row in time_archs(run.store, ARCHS[:2], QUICK, on=there)] == [5.0, 5.01]
    with pytest.raises(UserError, match=r"earlier timings are on a phone.*here it is .*--name"):
        time_archs(run.store, ARCHS[:3], QUICK, on=there)
    assert timed == []


def test_an_arch_that_raises_is_a_row(run: Run) -> None:
    vast = QUICK.model_copy(update={"batch_size": 2**50})
    rows = time_archs(run.store, ARCHS[:2], vast)
    assert [row["status"] for row in rows] == ["failed", "failed"] and rows[0]["ms"] is None
    assert "RuntimeError: " in rows[0]["reason"] and "\n" not in rows[0]["reason"]
    again = time_archs(run.store, ARCHS[:1], vast, on=on_of(rows[0]))  # no more than that is tried again
    assert again[0]["reason"] == rows[0]["reason"]


def test_a_predictor_is_of_rows_of_one_kind(run: Run) -> None:
    archs, on = archs_to_time(SPACE, 20), timed_on(QUICK)
    with pytest.raises(RunDirError, match="has 0 of the 20 timings"):
        stored_predictor(run.store, SPACE, 20, on)
    put(run, archs, on)
    assert stored_predictor(run.store, SPACE, 20, on)(SPACE.encode(archs)) == pytest.approx(5.0, rel=0.1)
    other = on.model_copy(update={"device": "a phone"})
    put(run, archs, other, ms=500.0)
    assert stored_predictor(run.store, SPACE, 20, on)(SPACE.encode(archs)) == pytest.approx(5.0, rel=0.1)
    rows = run.store.read("latencies").to_pylist()
    with pytest.raises(UserError, match="of one space on one device"):
        fit_predictor(SPACE, rows)
    assert isinstance(fit_predictor(SPACE, rows[20:]), LatencyPredictor)
    failed = [{**row, "status": "failed", "reason": "no memory"} for row in rows[:20]]
    with pytest.raises(UserError, match="none of 20 subnets could be timed, the first: no memory"):
        fit_predictor(SPACE, failed)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_in_an_actor_an_arch_that_takes_its_process_down_is_a_row() -> None:
    with stopwatch(QUICK, {"CPU": 2}) as watch:
        assert isinstance(watch, RemoteStopwatch) and watch.on == timed_on(QUICK)
        ray.kill(watch._actor)
        lost, timed = watch.time(ARCHS[0]), watch.time(ARCHS[1])
    assert lost.timing is None and "its process has ended" in str(lost.reason)
    assert timed.timing is not None and timed.timing.on == watch.on and timed.host


@pytest.mark.usefixtures("ray_session")
def test_no_such_resource_and_no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^timing needs 1 jetson \(this machine has 0\): name others"):
        RemoteStopwatch(QUICK, {"jetson": 1})
    with pytest.raises(UserError, match=r"^nothing can be timed: latency is to be measured on cuda:9, but"):
        RemoteStopwatch(Conditions(device="cuda:9"), {})
    monkeypatch.setattr("raynas.cluster.growth.is_local", lambda: False)  # a cluster may grow
    lines: list[str] = []
    with pytest.raises(UserError, match=r"within 1 s: it needs 1 CPU, 1 jetson .* 1 jetson \(0 of the cluster's 0 are"):
        RemoteStopwatch(QUICK, {"jetson": 1}, start_s=1, progress=lines.append)


@pytest.mark.usefixtures("ray_session")
def test_on_a_cluster_a_node_is_waited_for_as_long_as_by_the_other_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteStopwatch, "_start", lambda self: timed_on(QUICK))
    assert RemoteStopwatch(QUICK, {})._start_s == 300
    assert RemoteStopwatch(Conditions(seconds=1000), {})._limit_s > 4 * 1000  # as long as one may be timed
    monkeypatch.setattr("raynas.latency.stopwatch.is_local", lambda: False)
    assert RemoteStopwatch(QUICK, {})._start_s == 1800


class LosesNodes:
    """An actor whose node is lost so many times."""

    def __init__(self, losses: int):
        self.losses = losses
        self.ready = self.time = self

    def remote(self, *arguments: Any) -> Any:
        if arguments and self.losses:
            self.losses -= 1
            return lose_node.remote()
        return ray.put(TimedArch(arguments[0], None, "timed", "") if arguments else timed_on(QUICK))


@ray.remote(num_cpus=0, max_retries=0)
def lose_node() -> None:
    raise RayActorError(error_msg="The actor died unexpectedly ...\nThe actor died because its node has died.")


@pytest.mark.usefixtures("ray_session")
def test_a_subnet_whose_node_is_lost_is_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemoteStopwatch, "end", lambda self: None)
    monkeypatch.setattr(RemoteStopwatch, "_start", lambda self: timed_on(QUICK))
    watch, actor = RemoteStopwatch(QUICK, {}), LosesNodes(2)
    monkeypatch.setattr(watch, "_actor", actor, raising=False)
    assert watch.time(ARCHS[0]).reason == "timed" and actor.losses == 0
    actor.losses = 3
    assert watch.time(ARCHS[0]).reason == "3 nodes were lost at it"


@pytest.mark.parametrize("cluster", [True, False])
def test_timing_without_resources_says_on_a_cluster_where_it_is(cluster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raynas.latency.stopwatch.on_cluster", lambda: cluster)
    told: list[str] = []
    with stopwatch(QUICK, None, told.append):
        assert [line.startswith("timing on this machine") for line in told] == [True] * cluster


@pytest.mark.usefixtures("ray_session")
def test_a_trial_of_tune_can_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is in a placement group with room for nothing, which Ray puts its actors into unless told not to."""
    group = placement_group([{"memory": 1}])
    inside = property(lambda self: True)
    monkeypatch.setattr(Worker, "should_capture_child_tasks_in_placement_group", inside)
    rays = import_module("ray.util.placement_group")  # whose name in `ray.util` is the function's
    monkeypatch.setattr(rays, "get_current_placement_group", lambda: group)
    try:
        with stopwatch(QUICK, {}) as watch:
            assert watch.on == timed_on(QUICK)
    finally:
        remove_placement_group(group)
