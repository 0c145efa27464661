"""The section on what a run took shows the sums of its phases."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from raynas.reports.collect import collect
from raynas.reports.page import write_report
from raynas.results.phases import note_phase
from raynas.runs.run import Run
from tests.reports.test_report import Page

BEGAN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def attempt(hour: int, phase: str, status: str, seconds: float, joules: float | None, **more: Any) -> dict[str, Any]:
    began = BEGAN + timedelta(hours=hour)
    row = {"phase": phase, "began": began, "status": status, "seconds": seconds, "joules": joules, "machines": 2}
    return {**row, "measured": None if joules is None else "2 GPUs", **more}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", create=True)


def test_attempts_are_summed_by_phase_and_in_all(run: Run) -> None:
    why = "CPU: no counters"
    run.store.append("phases", [attempt(0, "supernet", "killed", 100.0, 2e6, unmeasured=why)])
    run.store.append("phases", [attempt(1, "supernet", "finished", 50.5, 1.5e6, unmeasured=why)])
    run.store.append("phases", [attempt(2, "search", "finished", 7.0, 1e3, name="search")])
    run.store.append("phases", [attempt(3, "search", "stopped", 2.0, None, name="random", unmeasured="CPU: lost")])
    note_phase(run, attempt(4, "search", "running", 3.0, 500.0, name="random"))  # it goes on, or was killed
    supernet, search, random, everything = Page(Path(write_report(run, collect(run))).read_text()).rows("phases")
    assert supernet == {
        "phase": "supernet", "name": "-", "attempts": "2", "machines": "2", "time": "150 s", "energy": "3.5 MJ",
        "of": "2 GPUs", "not measured": why,
    }  # fmt: skip
    assert (search["name"], search["energy"], search["not measured"]) == ("search", "1 kJ", "-")
    assert (random["attempts"], random["time"], random["energy"]) == ("2", "5.0 s", "at least 500 J")
    assert (everything["attempts"], everything["time"]) == ("5", "162 s")
    assert everything["energy"] == "at least 3.5 MJ"


def test_without_phases_there_is_no_section(run: Run) -> None:
    assert "Time and energy" not in Path(write_report(run, collect(run))).read_text()
