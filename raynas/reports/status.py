"""The state of a run's phases, read from its tables alone, so that it can be watched from any machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pyarrow.compute as pc

from raynas.errors import UserError
from raynas.results.phases import read_phases
from raynas.results.schemas import Row
from raynas.results.store import rows_by
from raynas.runs.files import PRESET
from raynas.runs.run import Run
from raynas.text import duration

SILENT_S = 180.0  # a phase that is under way notes itself at least once a minute
PACE_S = 300.0  # the pace is that of the last so many seconds


@dataclass(frozen=True)
class Work:
    """A phase of a run, over all attempts.

    Attributes:
        what: `supernet`, `search`, and so on; with a name if there are several of a kind.
        state: `running`, `finished`, `stopped`, `killed`, or `silent`: under way, but not heard of for three minutes.
        seconds: wall time of all attempts.
        progress: how far it is, such as `12/30 epochs`; empty if its tables do not say.
        newest: the newest numbers.
    """

    what: str
    state: str
    seconds: float
    progress: str = ""
    newest: str = ""


def status(run: Run) -> list[Work]:
    """Return the phases of a run, in the order in which they began; empty if none has begun.

    Raises:
        RunDirError: a table cannot be read.
    """
    attempts = rows_by(read_phases(run), "phase", "name")
    work = [_work(run, what, name, rows) for (what, name), rows in attempts.items()]
    return [*_trials(run), *work]


def _trials(run: Run) -> list[Work]:
    """Return the trials of an experiment as one phase; nothing if there are none.

    Only the process that carries them out knows how many will follow, so that they are not known to be finished.
    """
    rows = run.table("trials", ["number", "name", "state", "results", "seconds", "time"]).to_pylist()
    newest = {row["number"]: row for row in rows}.values()
    if not newest:
        return []
    states = [row["state"] for row in newest]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    told = [_trial(max(newest, key=lambda row: row["time"]))]
    finished = [row for row in newest if row["state"] == "finished"]
    if finished and (objectives := run.tuned) is not None:
        first, direction = next(iter(objectives.items()))
        best = (max if direction == "max" else min)(finished, key=lambda row: json.loads(row["results"])[first])
        told.append(f"best {_trial(best)}")
    seconds = (max(row["time"] for row in rows) - min(row["time"] for row in rows)).total_seconds()
    state = "running" if "running" in states else "finished"
    return [Work("trials", state, seconds, counts, "; ".join(told))]


def _trial(row: Row) -> str:
    told = ", ".join(f"{name} {value:.4g}" for name, value in json.loads(row["results"]).items())
    return f"{row['name']}: {told}" if told else str(row["name"])


def _work(run: Run, what: str, name: str | None, attempts: Sequence[Row]) -> Work:
    last = attempts[-1]
    state, now = last["status"], datetime.now(timezone.utc)
    if state == "running" and (now - last["began"]).total_seconds() - last["seconds"] > SILENT_S:
        state = "silent"
    told = {"supernet": _supernet, "search": _search, "retraining": _networks}.get(what)
    progress, newest = told(run, name, {**last, "status": state}) if told else ("", "")
    label = what if name in (None, what) else f"{what} {name}"
    return Work(label, state, sum(row["seconds"] or 0.0 for row in attempts), progress, newest)


def _supernet(run: Run, name: str | None, last: Row) -> tuple[str, str]:
    columns = ["what", "epoch", "loss", "images", "seconds", "workers"]
    epochs = run.table("training", columns, pc.field("what") == "supernet").to_pylist()
    total = run.read_yaml(PRESET, "recipe")["recipe"]["epochs"] if run.has_preset else None
    if not epochs:
        return "", ""
    epoch, recent = epochs[-1], epochs[-5:]
    parts = [f"loss {epoch['loss']:.4g}"]
    probes = run.table("probes", ["role", "epoch", "accuracy"]).to_pylist()
    scored = {row["role"]: row["accuracy"] for row in probes if row["epoch"] == probes[-1]["epoch"]}
    parts += [f"{role} {accuracy:.1%}" for role, accuracy in scored.items() if role in ("smallest", "largest")]
    if epoch["seconds"]:
        parts.append(f"{epoch['images'] / epoch['seconds']:,.0f} images/s on {epoch['workers']} worker(s)")
    if last["status"] == "running" and total is not None and epoch["epoch"] < total:
        pace = sum(row["seconds"] for row in recent) / len(recent)
        parts.append(f"{duration(pace * (total - epoch['epoch']))} left")
    return f"{epoch['epoch']}/{total or '?'} epochs", ", ".join(parts)


def _search(run: Run, name: str | None, last: Row) -> tuple[str, str]:
    """Return what the search itself noted; without notes (of an older raynas) it is gone through again."""
    stored = run.search(name or "search")
    if last["progress"] is not None:
        parts = [last["newest"], _pace(run)] if last["status"] == "running" else [last["newest"]]
        return last["progress"], ", ".join(part for part in parts if part)
    if not stored.has_begun:  # scored without a search
        return f"{run.scores().num_rows:,} scored", ""
    try:
        made, _ = stored.read_back()
    except UserError:  # a search of the user's own that is not here
        return "", ""
    of = "" if made.budget is None else f"/{made.budget:,}"
    return f"{made.evaluations:,}{of} scored", made.summary()


def _pace(run: Run) -> str:
    """Return the pace of whole scores, all of them of the search that runs; empty if there are none lately."""
    now = datetime.now(timezone.utc)
    times = run.table("scores", ["time"], pc.field("time") > now - timedelta(seconds=PACE_S))["time"].to_pylist()
    return f"{60 * len(times) / max(1.0, (now - min(times)).total_seconds()):,.0f} a minute" if times else ""


def _networks(run: Run, name: str | None, last: Row) -> tuple[str, str]:
    rows = [row for row in run.network_rows() if row["how"] == name]
    best = max((row["accuracy"] for row in rows if row["accuracy"] is not None), default=None)
    return f"{len(rows)} trained", "" if best is None else f"best {best:.2%} on the search split"
