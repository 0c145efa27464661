"""Rows of phases that finish, are stopped, and are killed; what is counted, what is said, and what never stops work."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from raynas.energy import counters
from raynas.errors import RunDirError
from raynas.phases import phase as phase_module
from raynas.phases.phase import phase, phase_line
from raynas.progress.reporter import Reporter
from raynas.results.phases import FILE, read_phases
from raynas.runs.run import Run
from raynas.text import energy_text
from tests.package_counter import package_counter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", create=True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The counter of a CPU package that wraps at 100 J, and stands at 90 J; this machine's own are not looked at."""
    return package_counter(tmp_path, monkeypatch, at=90, wraps_at=100)


def test_a_phase_is_a_row_and_a_line(run: Run, package: Path) -> None:
    lines: list[str] = []
    with phase(run, "search", "random", progress=lines.append):
        time.sleep(0.5)
        package.write_text("15000000\n")  # over 100 J, and 15 J more
    (row,) = run.store.read("phases").to_pylist()
    assert (row["phase"], row["name"], row["status"]) == ("search", "random", "finished")
    assert row["joules"] == pytest.approx(25.0) and row["measured"] == "1 CPU package"
    assert row["seconds"] >= 0.5 and row["began"] < row["time"]
    assert row["machines"] == 1 and row["device"] and "raynas=" in row["versions"]
    assert lines == [f"search random: {row['seconds']:.1f} s, 25 J (1 CPU package)"]


def test_a_fast_counter_is_read_in_between(run: Run, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_module, "BEAT_S", 0.05)
    total = 0
    with phase(run, "supernet"):
        while read_phases(run)[0]["joules"] != 0:  # until the counter has been read once
            time.sleep(0.02)
        for joules in (40, 90, 40):  # 50 J a turn: the ends alone would tell of 50 J
            package.write_text(f"{joules}000000\n")
            total += 50
            while read_phases(run)[0]["joules"] != total:
                time.sleep(0.02)
    (row,) = run.store.read("phases").to_pylist()
    assert row["joules"] == pytest.approx(150.0)


def test_a_running_phase_notes_how_far_its_work_is(run: Run) -> None:
    show = Reporter()
    with show.doing("search", 10, "scored") as activity, phase(run, "search", activity=activity):
        activity.update(3, "best accuracy 0.5")
        while read_phases(run)[0]["progress"] != "3/10 scored":
            time.sleep(0.02)
        assert read_phases(run)[0]["newest"] == "best accuracy 0.5"
        activity.update(9, "best accuracy 0.75")
    (row,) = run.store.read("phases").to_pylist()
    assert (row["status"], row["progress"], row["newest"]) == ("finished", "9/10 scored", "best accuracy 0.75")


def test_without_counters_the_line_says_why(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "POWERCAP", tmp_path / "none")
    monkeypatch.setattr(counters, "GPUS", tmp_path / "none")
    lines: list[str] = []
    with phase(run, "supernet", progress=lines.append):
        pass
    (row,) = run.store.read("phases").to_pylist()
    assert row["joules"] is None and row["measured"] is None
    with phase(run, "search", progress=lines.append):
        pass
    assert [re.sub(r"[\d.]+ s", "0 s", line) for line in lines] == [
        f"supernet: 0 s; its energy is not known (CPU: no counters in {tmp_path}/none)",
        "search: 0 s",  # once in a run
    ]


def test_stopped_and_gone_on_with_it_has_two_rows(run: Run, package: Path) -> None:
    with pytest.raises(KeyboardInterrupt), phase(run, "supernet"):
        time.sleep(0.3)
        package.write_text("91000000\n")
        raise KeyboardInterrupt
    with phase(run, "supernet"):
        package.write_text("93000000\n")
    rows = run.store.read("phases").to_pylist()
    assert [row["status"] for row in rows] == ["stopped", "finished"]
    assert rows[0]["joules"] == pytest.approx(1.0)
    assert read_phases(run) == rows


def test_a_killed_attempt_leaves_what_was_known(run: Run) -> None:
    code = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from raynas.phases import phase as phase_module
from raynas.runs.run import Run
phase_module.BEAT_S = 0.1
with phase_module.phase(Run({run.uri!r}), "search", "search"):
    print("begun", flush=True)
    time.sleep(100)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    began = time.monotonic()
    while read_phases(run)[0]["seconds"] < 0.5:
        assert time.monotonic() - began < 60
        time.sleep(0.05)
    assert read_phases(run)[0]["status"] == "running"
    process.send_signal(signal.SIGKILL)
    process.wait()
    (killed,) = read_phases(run)
    assert run.store.read("phases").num_rows == 0
    for _ in range(2):
        with phase(run, "search", "search"):
            pass
    rows = read_phases(run)
    assert [row["status"] for row in rows] == ["killed", "finished", "finished"]
    assert {**killed, **{name: rows[0][name] for name in ("status", "time")}} == rows[0]


def test_what_is_wrong_with_the_measuring_never_stops_the_work(
    run: Run, package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run.write_bytes(FILE, b"damaged")
    (run.path or Path()).joinpath("tables").write_text("a file where a folder should be")
    package.unlink()
    worked = []
    with phase(run, "supernet"):
        worked.append(1)
    assert worked and "cannot be written" in caplog.text
    with pytest.raises(RunDirError):
        run.store.append("timings", [{"what": "this", "seconds": 1.0}])
    (run.path or Path()).joinpath("tables").unlink()  # mended, the row comes after all
    with phase(run, "search"):
        pass
    rows = run.store.read("phases").to_pylist()
    assert [(row["phase"], row["status"]) for row in rows] == [("supernet", "finished"), ("search", "finished")]


def test_no_ray_is_started_for_a_measurement(run: Run, package: Path) -> None:
    import ray

    before = ray.is_initialized()  # other tests of this process may use one
    with phase(run, "supernet", cluster=True):
        time.sleep(0.2)
    assert ray.is_initialized() == before
    assert read_phases(run)[0]["joules"] == 0.0


@pytest.mark.parametrize(
    ("joules", "text"), [(0.0, "0 J"), (812.4, "812 J"), (999.7, "1 kJ"), (3140.0, "3.14 kJ"), (4.5e7, "45 MJ")]
)
def test_energies_in_words(joules: float, text: str) -> None:
    assert energy_text(joules) == text


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"phase": "supernet", "name": None, "seconds": 64.2}, "supernet: 64 s, 3.1 kJ (2 GPUs)"),
        ({"phase": "search", "name": "search", "seconds": 7200.0}, "search: 7,200 s, 3.1 kJ (2 GPUs)"),
        ({"phase": "retraining", "name": "scratch", "seconds": 3.14}, "retraining scratch: 3.1 s, 3.1 kJ (2 GPUs)"),
    ],
)
def test_lines(row: dict[str, Any], line: str) -> None:
    assert phase_line({**row, "joules": 3100.0, "measured": "2 GPUs"}) == line
