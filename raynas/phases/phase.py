"""Time and energy of each phase of a run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

from raynas.cluster.connection import on_loopback
from raynas.energy import counters
from raynas.energy.meter import Meter
from raynas.energy.nodes import LIMIT_S, OtherNodes
from raynas.progress.reporter import Activity, Progress, silent
from raynas.results.phases import keep_last, note_phase
from raynas.results.run_dir import RunDir
from raynas.results.schemas import Row
from raynas.results.versions import versions_text
from raynas.text import energy_text, seconds_text

log = logging.getLogger(__name__)

BEAT_S = 60.0  # seconds between readings: the fastest counters (AMD's, 65 kJ) wrap around in two minutes at 500 W
NOTE_S = 5.0  # seconds between notes of how far an activity is


@contextmanager
def phase(
    run: RunDir,
    what: str,
    name: str | None = None,
    cluster: bool = False,
    progress: Progress = silent,
    activity: Activity | None = None,
    networks: Sequence[str] | None = None,
) -> Iterator[None]:
    """Measure the block as one attempt of a phase, written as a row of table `phases` however it ends.

    The row of a killed attempt is written by the next attempt of any phase, from its last notes, which lack at most
    half of its seconds and at most a minute. Blocks must not be nested, since time would be counted twice.

    Args:
        run: run directory owned by this process.
        what: `supernet`, `search`, `retraining`, `ranking`, `timing` or `ordering`.
        name: name among several of the same kind, such as a search's.
        cluster: True if the work is done on all of the connected Ray cluster, not in this process.
        activity: the work, if no other table says how far it is.
        networks: names of the networks that are trained.
    """
    about = {"phase": what, "name": name, "networks": networks}
    attempt = _Attempt(run, about, cluster, activity)
    status = "stopped"
    try:
        yield
        status = "finished"
    finally:
        row = attempt.end(status)
        if status == "finished":
            progress(phase_line(row, attempt.told))


def phase_line(row: Row, told: bool = False) -> str:
    """Return an attempt in words: `supernet: 64 s, 3.1 kJ (2 GPUs)`.

    Args:
        told: True if the user has been told that this run's energy is unknown.
    """
    what = " ".join(dict.fromkeys(word for word in (row["phase"], row["name"]) if word))
    seconds = seconds_text(row["seconds"])
    if row["joules"] is None and told:
        return f"{what}: {seconds}"
    if row["joules"] is None:
        return f"{what}: {seconds}; its energy is not known ({row['unmeasured'] or 'it was too short'})"
    return f"{what}: {seconds}, {energy_text(row['joules'])} ({row['measured']})"


class _Attempt:
    """A running attempt, which reads counters in a thread until `end`; errors of that never stop the work."""

    def __init__(self, run: RunDir, about: Row, cluster: bool, activity: Activity | None):
        self._run, self._activity = run, activity
        self._about = {**about, "began": datetime.now(timezone.utc), "versions": versions_text()}
        self._began = time.monotonic()
        self._meter = Meter()
        self._totals = self._meter.totals()  # after the latest round
        self._others = OtherNodes() if cluster and not on_loopback() else None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raynas-phase", daemon=True)
        self.told = False  # True if the user has been told that the run's energy is unknown
        try:
            keep_last(run)
            ended = run.store.read("phases", ["status", "joules"]).to_pylist()
            self.told = any(row["status"] == "finished" and row["joules"] is None for row in ended)
            note_phase(run, self._row("running"))
        except Exception as error:
            log.warning("%s: its phases cannot be kept: %s", run.name, error)
        self._thread.start()

    def end(self, status: str) -> Row:
        """Write the row, and return it."""
        seconds = time.monotonic() - self._began
        self._stop.set()
        self._thread.join(2 * LIMIT_S + 5)  # the first round may be under way; the last one follows
        row = {**self._row(status), "seconds": seconds}
        try:
            note_phase(self._run, row)
            self._run.store.append("phases", [row])
        except Exception as error:
            log.warning("%s: the row of phase %s cannot be written: %s", self._run.name, row["phase"], error)
        return row

    def _row(self, status: str) -> Row:
        row = {**self._about, "status": status, "seconds": time.monotonic() - self._began, **self._totals}
        if (work := self._activity) is not None:
            row |= {"progress": work.counted, "newest": work.detail}
        return row

    def _watch(self) -> None:
        try:
            due = self._began
            while True:
                if time.monotonic() >= due:
                    self._read()
                    due = time.monotonic() + self._pause(BEAT_S)
                if self._stop.wait(self._pause(BEAT_S if self._activity is None else min(NOTE_S, BEAT_S))):
                    break
                note_phase(self._run, self._row("running"))
            self._read(last=True)
        except Exception as error:
            log.warning("%s: energy is measured no more: %s", self._run.name, error)

    def _pause(self, longest_s: float) -> float:
        """Return the seconds to the next round: as many as have passed, but no more than given."""
        return min(longest_s, max(1.0, time.monotonic() - self._began))

    def _read(self, last: bool = False) -> None:
        readings = [counters.read_counters(counters.POWERCAP, counters.GPUS)]
        if self._others is not None:
            try:
                readings += self._others.read(last)
            except Exception as error:
                log.warning("counters of other machines are read no more: %s", error)
                self._others = None
        self._meter.add(readings)
        self._totals = self._meter.totals()
