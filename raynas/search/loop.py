"""The search loop, for any ask/tell search and any scorer."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raynas.errors import UserError
from raynas.search.base import AskTell
from raynas.search.history import History
from raynas.search.own import OwnSearch
from raynas.space import Arch
from raynas.text import duration
from raynas.user_code import kind

SearchT = TypeVar("SearchT", bound=AskTell)

HEARTBEAT_S = 4.0
"""Seconds between progress lines."""


def run_search(
    search: SearchT,
    scorer: Any,
    batch: int = 50,
    progress: Callable[[str], None] | None = print,
    name: str = "search",
    begin: Callable[[], None] = lambda: None,
) -> SearchT:
    """Ask, score and tell until the search is over.

    There is no state to save or restore. To resume, run again with a new search of the same arguments and a scorer that
    reuses its rows: archs with a row are told at once, and only the others are scored.

    Args:
        search: an object with `ask(n)` and `tell(archs, scores)`, without outstanding archs.
        scorer: an object with `score(archs)`, which returns rows in the given order. If it also has
            `score_iter(archs)`, which yields rows (with the arch's id under `arch`) as they finish, progress counts
            each row.
        batch: archs in one call of the scorer; larger batches keep replicas busier and do not change the result.
        progress: called with the search's notes, and with lines such as `search: 150/1050 scored, best accuracy
            0.87 (0f3a..), 0 % failed, 40 s left`, every 4 seconds from another thread, and at the end; None for none.
        name: prefix of the lines.
        begin: called once, when there is something to score and before it is scored.

    Returns:
        The search.

    Raises:
        UserError: batch is not positive, the scorer returned no row for an arch, or a search of the user's own breaks
            its contract (see `OwnSearch`).
    """
    if batch < 1:
        raise UserError(f"batch must be at least 1, not {batch}")
    if not callable(getattr(scorer, "score", None)) and not callable(getattr(scorer, "score_iter", None)):
        raise UserError(f"a scorer must have score(archs), or score_iter(archs); it is {kind(scorer)}")
    driven = search if isinstance(search, History) else OwnSearch(search, getattr(scorer, "space", None))
    begun = False
    with Progress(driven, progress, name) as shown:
        while archs := driven.ask(batch):
            shown.notes()
            if not begun:
                begin()
                begun = True
            scores = _score(scorer, archs, shown)
            driven.tell(archs, scores)
            shown.refresh()
        shown.notes()
    return search


def _score(scorer: Any, archs: Sequence[Arch], shown: Progress) -> list[Any]:
    """Return the archs' scores, in order."""
    if not hasattr(scorer, "score_iter"):
        scores = list(scorer.score(archs))
        if len(scores) != len(archs):
            raise UserError(f"the scorer gave {len(scores)} scores for {len(archs)} archs")
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
    """Progress lines of a running search, from a separate thread so that a slow scorer does not block them."""

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
        """Read the search's best so far; call it between two `tell`, from the same thread."""
        summary = self._search.summary()
        self._summary = f", {summary}" if summary else ""

    def notes(self) -> None:
        """Show the search's new notes, if it has any."""
        notes = self._search.notes
        for note in notes[self._noted :]:
            if self._show is not None:
                self._show(f"{self._name}: {note}")
        self._noted = len(notes)

    def line(self, ended: bool = False) -> str:
        """Return the current progress line."""
        with self._lock:
            budget = self._search.budget
            of = f"/{budget}" if budget is not None else ""
            failed = f", {self._failed / max(1, self._scored):.0%} failed"
            left = "" if ended or budget is None else self._left(budget)
            if ended and self._calibrations:
                left = f", {self._calibrations / (self._passes + self._calibrations):.0%} of the time calibrating"
            return f"{self._name}: {self._scored}{of} scored{self._summary}{failed}{left}"

    def _left(self, budget: int) -> str:
        # Uses the latest scores only, since rows reused at a restart take no time.
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
