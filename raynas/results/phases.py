"""Table `phases`: the attempts of a run's phases, including one that was killed or still runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from raynas.errors import RunDirError
from raynas.results.run_dir import RunDir
from raynas.results.schemas import SCHEMAS, Row

FILE = "phase.json"  # the newest attempt, as it stood a while ago or as it ended; then its row is in the table, too


def note_phase(run: RunDir, row: Mapping[str, Any]) -> None:
    """Save the attempt so far, so that a killed phase still gets a row."""
    run.write_json(FILE, {**row, "began": row["began"].isoformat()})


def keep_last(run: RunDir) -> None:
    """Write the row of the last attempt if it has none; the caller must hold the lock."""
    row = _open(run)
    if row is not None:
        killed = row["status"] == "running"
        run.store.append("phases", [{**row, "status": "killed"} if killed else row])


def read_phases(run: RunDir) -> list[Row]:
    """Return the rows of the table, and a row of an attempt that still runs or was killed."""
    row = _open(run)
    rows: list[Row] = run.store.read("phases").to_pylist()
    return rows if row is None else [*rows, {**dict.fromkeys(SCHEMAS["phases"].names), **row}]


def _open(run: RunDir) -> Row | None:
    if not run.exists(FILE):
        return None
    try:
        row = run.read_json(FILE)
        row["began"] = datetime.fromisoformat(row["began"])
    except (RunDirError, KeyError, TypeError, ValueError):  # damaged: it says nothing
        return None
    known = run.store.read("phases", ["began"])["began"].to_pylist()
    return None if row["began"] in known else row
