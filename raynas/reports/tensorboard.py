"""Event files for TensorBoard, written from a run's tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tensorboardX import SummaryWriter

from raynas.errors import UserError, first_line
from raynas.reports.collect import Trace
from raynas.results.schemas import Row
from raynas.runs.run import Run

COLUMNS = ("loss", "learning_rate", "gradient_norm", "conflict")


def write_events(run: Run, folder: Path, traces: list[Trace]) -> list[Path]:
    """Write the course of trainings, probes and searches, each as a run of TensorBoard's; earlier ones are replaced.

    Args:
        folder: TensorBoard's log directory.

    Returns:
        The folders, one for each training and each search.

    Raises:
        UserError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: no folder can be made there ({first_line(error)}): give another") from error
    curves: dict[str, list[tuple[str, float, int, float | None]]] = {}
    for what, row in epochs_of(run):
        points = curves.setdefault(what, [])
        time, step = row["time"].timestamp(), row["step"]
        points += [(name, row[name], step, time) for name in COLUMNS if row[name] is not None]
        if row["seconds"]:
            points.append(("images_per_s", row["images"] / row["seconds"], step, time))
    steps = {row["epoch"]: row["step"] for what, row in epochs_of(run) if what == "supernet"}
    for row in run.table("probes").to_pylist():
        where = steps.get(row["epoch"], row["epoch"]), row["time"].timestamp()
        curves.setdefault("supernet", []).append((f"accuracy/{row['role']}", row["accuracy"], *where))
    for trace in traces:
        points = curves.setdefault(f"search/{trace.name}", [])
        for place, (value, best) in enumerate(zip(trace.accuracy, trace.best_so_far(), strict=True), 1):
            if value is not None:
                points += [("accuracy", value, place, None), ("best", float(best), place, None)]
    return [_write(folder / what, points) for what, points in curves.items()]


def epochs_of(run: Run) -> Iterator[tuple[str, Row]]:
    """Yield the epochs of each training with its name; of a network that was trained anew, those of the last one."""
    ended: dict[str, list[datetime]] = {}
    for row in run.table("networks", ["path", "time"]).to_pylist():
        ended.setdefault((row["path"] or "").rpartition("/")[2], []).append(row["time"])
    for row in run.table("training").to_pylist():
        if all(row["time"] > time for time in ended.get(row["what"], ())[:-1]):
            yield row["what"], row


def _write(folder: Path, points: list[tuple[str, float, int, float | None]]) -> Path:
    for earlier in folder.glob("events.out.tfevents.*"):
        earlier.unlink()
    with SummaryWriter(str(folder)) as writer:
        for name, value, step, time in points:
            writer.add_scalar(name, value, step, time)
    return folder
