from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas.cluster.resources import Resources
from raynas.commands.main import main
from raynas.costs import cost
from raynas.errors import UserError
from raynas.outer.trials import Trial, write_trial
from raynas.phases.search import search_fully
from raynas.results.phases import note_phase
from raynas.runs.run import Run
from raynas.search.config import SearchConfig
from tests.small_run import SPACE, small_run

DEMO = Path(__file__).parents[1] / "golden/runs/demo"


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO, tmp_path / "demo"))


def test_the_newest_numbers_of_each_phase_are_those_of_its_tables(demo: Path) -> None:
    works = {work.what: work for work in raynas.status(demo)}
    assert list(works) == ["supernet", "search", "search random", "retraining scratch"]
    assert {work.state for work in works.values()} == {"finished"}
    assert works["supernet"].progress == "2/2 epochs" and "loss 2.297" in works["supernet"].newest
    run = raynas.open_run(demo)
    scores = {row["arch"]: row["accuracy"] for row in run.scores().to_pylist()}
    for name, what in (("search", "search"), ("random", "search random")):  # noted nothing: of an older raynas
        asked = run.search(name).course()["arch"].to_pylist()
        best = max(scores[arch] for arch in asked)
        assert works[what].progress == f"{len(asked)}/{len(asked)} scored"
        assert works[what].newest.startswith(f"best accuracy {best:.6g} ")


def test_a_phase_that_has_not_been_heard_of_is_silent_and_one_that_has_is_running(demo: Path) -> None:
    run, now = Run(demo), datetime.now(timezone.utc)
    about = {"phase": "search", "name": "second", "status": "running", "versions": ""}
    note_phase(run, {**about, "began": now - timedelta(seconds=600), "seconds": 590.0})
    assert raynas.status(run)[-1].state == "running"
    note_phase(run, {**about, "began": now - timedelta(seconds=600), "seconds": 100.0})
    assert (raynas.status(run)[-1].what, raynas.status(run)[-1].state) == ("search second", "silent")


def test_watch_prints_a_line_for_each_phase_and_needs_neither_ray_nor_torch(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(demo), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["supernet", "search", "search random", "retraining scratch"]
    script = "import sys, raynas; raynas.status(sys.argv[1]); print({'ray', 'torch'} & {*sys.modules})"
    out = subprocess.run([sys.executable, "-c", script, str(demo)], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "set()"


def test_watch_ends_in_a_pipe_when_nothing_is_under_way(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, now, waits = Run(demo), datetime.now(timezone.utc), list[float]()
    about = {"phase": "search", "name": "second", "versions": "", "began": now, "seconds": 1.0}

    def pass_time(seconds: float) -> None:
        waits.append(seconds)
        note_phase(run, {**about, "status": "running" if len(waits) < 10 else "finished"})

    monkeypatch.setattr("raynas.commands.watch.time.sleep", pass_time)
    monkeypatch.setattr("raynas.commands.watch.time.monotonic", lambda: sum(waits))
    assert main(["watch", str(demo), "--every", "20"]) == 0
    assert len(waits) == 9 + 4  # seen running for the last time before the tenth, and quiet for more than 60 s after it
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("search second: running") for line in lines) == 1
    assert lines[-2].startswith("search second: finished") and lines[-1] == "nothing has been under way for 60 s"


def test_tensorboard_gets_the_rows_of_trainings_probes_and_searches(demo: Path, tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import Event

    for _ in range(2):  # the second time replaces the first
        raynas.report(demo, tensorboard=tmp_path / "events")
    (file,) = (tmp_path / "events/supernet").iterdir()
    content, at, points = file.read_bytes(), 0, dict[tuple[str, int], float]()
    while at < len(content):  # length, checksum, event, checksum
        size = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + size])
        points |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
        at += 12 + size + 4
    run = raynas.open_run(demo)
    epochs = [row for row in run.table("training").to_pylist() if row["what"] == "supernet"]
    for row in epochs:
        assert points["loss", row["step"]] == pytest.approx(row["loss"])
        assert points["learning_rate", row["step"]] == pytest.approx(row["learning_rate"])
    probes = [row for row in run.table("probes").to_pylist() if row["epoch"] == epochs[-1]["epoch"]]
    for row in probes:
        assert points[f"accuracy/{row['role']}", epochs[-1]["step"]] == pytest.approx(row["accuracy"])
    assert {*os.listdir(tmp_path / "events/search")} == {"evolution", "random search"}
    with pytest.raises(UserError, match="no folder can be made there"):
        raynas.report(demo, tensorboard=demo / "raynas.yaml" / "events")


def test_each_search_shows_its_own_scores_and_best(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    smallest = cost(SPACE, [SPACE.smallest()])["macs"][0]
    limits: dict[str, Any] = {"first": {}, "tight": {"macs": (None, int(1.2 * smallest))}, "longer": {}}
    for seed, (name, constraints) in enumerate(limits.items()):
        settings = {"name": "random", "evaluations": 3 + seed, "constraints": constraints, "seed": seed}
        search_fully(run, SearchConfig.model_validate(settings), Resources(replicas=0), name=name)
    works = {work.what: work for work in raynas.status(run)}
    for name in limits:
        course = run.search(name).course()
        scores = dict(zip(course["arch"].to_pylist(), course["accuracy"].to_pylist(), strict=True))
        work = works[f"search {name}"]
        assert work.progress == f"{len(scores)}/{len(scores)} scored"
        winner = run.search(name).winner.id
        assert work.newest == f"best accuracy {max(scores.values()):.6g} ({winner}), 0% failed"
        assert list(run.search(name).scores()) == course["arch"].to_pylist()
    assert len(run.search("first").comparable_scores()) > 3  # those of the others are measured alike


@pytest.mark.parametrize(("direction", "best"), [("max", "0001: searched 0.9"), ("min", "0000: searched 0.7")])
def test_the_trials_of_a_tuning_are_told_with_the_last_and_the_best_one(
    tmp_path: Path, direction: str, best: str
) -> None:
    run = Run(tmp_path / "run", create=True)
    run.write_yaml("tune.yaml", {"settings": {"tune": {"objectives": {"searched": direction}}}})
    for number, (state, accuracy) in enumerate((("finished", 0.7), ("finished", 0.9), ("pruned", 0.1))):
        results = {"searched": accuracy} if state == "finished" else {}
        write_trial(run, Trial(number, f"{number:04}", {}, f"trials/{number:04}", state, results))  # type: ignore[arg-type]
    (work,) = raynas.status(run)
    assert (work.state, work.progress) == ("finished", "2 finished, 1 pruned")
    assert work.newest == f"0002; best {best}"
