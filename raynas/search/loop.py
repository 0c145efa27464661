"""The loop around any ask/tell search and any scorer."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raynas.errors import UserError
from raynas.search.base import AskTell
from raynas.space import Arch

SearchT = TypeVar("SearchT", bound=AskTell)

HEARTBEAT_S = 4.0
"""A progress line comes this often, in seconds."""


def run_search(
    search: SearchT,
    scorer: Any,
    batch: int = 50,
    progress: Callable[[str], None] | None = print,
    name: str = "search",
    begin: Callable[[], None] = lambda: None,
) -> SearchT:
    """Ask, score and tell until the search has no more to ask.

    There is nothing to save and nothing to restore: run again with the same search and a scorer that answers from its
    rows, and what was scored is told again in no time; only what was in flight is scored anew.

    Args:
        search: an object with `ask(n)` and `tell(archs, scores)`, in a state where nothing is outstanding.
        scorer: an object with `score(archs)`, a list of rows in the order given; where it also has
            `score_iter(archs)`, rows (with the arch's id under `arch`) as they finish, progress moves with each row.
        batch: archs in one call of the scorer; larger ones keep replicas busier, and change nothing in the result.
        progress: called with what the search notes, and with lines such as `search: 150/1050 scored, best accuracy
            0.87 (0f3a..), 0 % failed, 40 s left`, every 4 seconds from another thread, and at the end; None: silence.
        name: what the lines begin with.
        begin: called once, when there is something to score and before it is scored.

    Returns:
        The search.

    Raises:
        UserError: batch is not positive, or the scorer left an arch without a row.
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    begun = False
    with Progress(search, progress, name) as shown:
        while archs := search.ask(batch):
            shown.notes()
            if not begun:
                begin()
                begun = True
            scores = _score(scorer, archs, shown)
            search.tell(archs, scores)
            shown.refresh()
        shown.notes()
    return search


def _score(scorer: Any, archs: Sequence[Arch], shown: Progress) -> list[Any]:
    """The archs' scores, in their order."""
    if not hasattr(scorer, "score_iter"):
        scores = list(scorer.score(archs))
        for score in scores:
            shown.scored(score)
        return scores
    rows: dict[str, Any] = {}
    for row in scorer.score_iter(archs):
        rows[row["arch"]] = row
        shown.scored(row)
    missing = [arch.id for arch in archs if arch.id not in rows]
    if missing:
        raise UserError(f"the scorer gave no row for {len(missing)} of {len(archs)} archs, the first {missing[0]}")
    return [rows[arch.id] for arch in archs]


class Progress:
    """Progress lines of a running search, from a thread of its own so that a slow scorer does not silence them."""

    def __init__(self, search: Any, show: Callable[[str], None] | None, name: str, every_s: float = HEARTBEAT_S):
        self._search = search
        self._show = show
        self._name = name
        self._every_s = every_s
        self._scored = 0
        self._failed = 0
        self._passes = self._calibrations = 0.0  # seconds of scored archs
        self._summary = ""
        self._noted = 0
        self._times: deque[float] = deque([time.monotonic()], maxlen=200)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="search-progress", daemon=True)

    def __enter__(self) -> Progress:
        if self._show is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        if self._show is not None:
            self._thread.join()
            self._show(self.line(ended=True))

    def scored(self, score: Any) -> None:
        """Count one arch's score."""
        with self._lock:
            self._scored += 1
            self._failed += _failed(score)
            if isinstance(score, Mapping):
                self._passes += score.get("seconds") or 0.0
                self._calibrations += score.get("calibration_seconds") or 0.0
            self._times.append(time.monotonic())

    def refresh(self) -> None:
        """Read the search's best so far; to be called between two `tell`, from their thread."""
        summary = getattr(self._search, "summary", None)
        self._summary = f", {summary()}" if summary is not None else ""

    def notes(self) -> None:
        """Show what the search has noted since the last time, if it notes anything."""
        notes = getattr(self._search, "notes", [])
        for note in notes[self._noted :]:
            if self._show is not None:
                self._show(f"{self._name}: {note}")
        self._noted = len(notes)

    def line(self, ended: bool = False) -> str:
        """The present state in one line."""
        with self._lock:
            budget = getattr(self._search, "budget", None)
            of = f"/{budget}" if budget is not None else ""
            failed = f", {self._failed / max(1, self._scored):.0%} failed"
            left = "" if ended or budget is None else self._left(budget)
            if ended and self._calibrations:
                left = f", {self._calibrations / (self._passes + self._calibrations):.0%} of the time calibrating"
            return f"{self._name}: {self._scored}{of} scored{self._summary}{failed}{left}"

    def _left(self, budget: int) -> str:
        # The rate of the last scores only: those answered from rows at a restart say nothing of the rest.
        if len(self._times) < 2:
            return ""
        seconds = (time.monotonic() - self._times[0]) / (len(self._times) - 1) * (budget - self._scored)
        return f", {duration(seconds)} left"

    def _beat(self) -> None:
        while not self._stop.wait(self._every_s):
            assert self._show is not None
            self._show(self.line())


def _failed(score: Any) -> bool:
    if isinstance(score, Mapping):
        return score.get("status") == "failed" or _failed(score.get("accuracy", 0.0))
    return score is None or (isinstance(score, float) and math.isnan(score))


def duration(seconds: float) -> str:
    """Seconds in words: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
