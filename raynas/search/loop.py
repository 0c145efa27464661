"""The search loop, for any ask/tell search and any scorer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from raynas.arguments import checked
from raynas.config import Positive
from raynas.errors import UserError
from raynas.progress.reporter import Activity, Progress, reporter, silent
from raynas.search.base import AskTell
from raynas.search.halving import Rung, ask_together, check_rungs, early_stops
from raynas.search.history import History
from raynas.search.own import OwnSearch
from raynas.search.racing import Racing
from raynas.space import Arch
from raynas.user_code import kind

SearchT = TypeVar("SearchT", bound=AskTell)


@checked()
def run_search(
    search: SearchT,
    scorer: Any,
    batch: Positive = 50,
    progress: Progress = silent,
    name: str = "search",
    begin: Callable[[Activity], None] = lambda activity: None,
    racing: Racing = "off",
    rungs: Sequence[Rung] = (),
) -> SearchT:
    """Ask, score and tell until the search is over.

    There is no state to save or restore. To resume, run again with a new search of the same arguments and a scorer that
    reuses its rows: archs with a row are told at once, and only the others are scored.

    Args:
        search: an object with `ask(n)` and `tell(archs, scores)`, without outstanding archs.
        scorer: an object with `score(archs)`, which returns rows in the given order. If it also has
            `score_iter(archs)`, which yields rows (with the arch's id under `arch`) as they finish, progress counts
            each row. If it says what it scores (`objectives`, a list of names), a search by others is refused.
        batch: archs in one call of the scorer; larger batches keep replicas busier and do not change the result,
            except with racing and rungs, where archs compete with those of their batch.
        progress: called with the search's notes, and with lines such as `search: 150/1,050 scored, best accuracy
            0.87 (0f3a..), 0% failed, 40 s left`, every 4 seconds or less often, and at the end.
        name: prefix of the lines.
        begin: called once, when there is something to score and before it is scored, with the search as an activity.
        racing: stopping of archs that cannot reach the search's cut, see `raynas.search.racing`; the scorer must then
            be a `BlockScorer`.
        rungs: cheap judges, each of which stops a share of the archs, see `raynas.search.halving`; in place of racing.
            The scorer must be a `BlockScorer`, for training-free scores a `RungScorer`; ours are both.

    Returns:
        The search.

    Raises:
        UserError: batch is not positive, the scorer has no values of an objective or returned no row for an arch, a
            search of the user's own breaks its contract (see `OwnSearch`), or racing or rungs are not possible with the
            search or the scorer.
    """
    if not callable(getattr(scorer, "score", None)) and not callable(getattr(scorer, "score_iter", None)):
        raise UserError(f"a scorer must have score(archs), or score_iter(archs); it is {kind(scorer)}")
    _check_objectives(search, scorer)
    early = early_stops(search, racing, rungs)
    if early is not None:
        proxies = any(rung.images is None for rung in rungs)
        for method in ("score_block(archs, first, last)", *(["score_proxy(archs, by)"] if proxies else [])):
            if not callable(getattr(scorer, method.partition("(")[0], None)):
                needs = "rungs need" if rungs else "racing needs"
                ours = "take ScorePool or LocalScorer, or write it as raynas.search.halving.RungScorer says"
                raise UserError(f"{needs} a scorer with {method}; it is {kind(scorer)}: {ours}")
        check_rungs(rungs, batch, scorer.image_count)
    driven = search if isinstance(search, History) else OwnSearch(search, getattr(scorer, "space", None))
    begun = False
    progress = reporter(progress)
    with progress.doing(name, driven.budget, "scored") as activity:
        shown = _Shown(driven, progress, activity)
        try:
            while archs := ask_together(driven, batch) if rungs else driven.ask(batch):
                shown.notes()
                if not begun:
                    begin(activity)
                    begun = True
                if early is None:
                    scores = _score(scorer, archs, shown)
                else:
                    scores = early(archs, scorer, shown.under_way)
                    shown.stopped(archs, scores, scorer.image_count)
                driven.tell(archs, scores)
                shown.told()
            shown.notes()
        finally:
            shown.end()
    return search


def _check_objectives(search: AskTell, scorer: Any) -> None:
    """Refuse a search by an objective that the scorer, if it says what it scores, has no value of."""
    given = getattr(scorer, "objectives", None)
    if given is None or not isinstance(search, History):
        return
    for name in search.objectives.scored:
        if name not in given:
            known = ", ".join(map(repr, given))
            raise UserError(
                f"the search's objective is {name!r}, and this scorer gives {known}: "
                f"give the search objectives such as {{{given[0]!r}: 'max'}}"
            )


def _score(scorer: Any, archs: Sequence[Arch], shown: _Shown) -> list[Any]:
    """Return the archs' scores, in order."""
    if not hasattr(scorer, "score_iter"):
        given = scorer.score(archs)
        if not isinstance(given, Iterable):
            raise UserError(f"score(archs) of the scorer must return a list of scores; it returned {kind(given)}")
        scores = list(given)
        if len(scores) != len(archs):
            raise UserError(f"the scorer gave {len(scores)} scores for {len(archs)} archs")
        for arch, score in zip(archs, scores, strict=True):
            shown.scored(arch.id, score)
        return scores
    rows: dict[str, Any] = {}
    for row in scorer.score_iter(archs):
        rows[row["arch"]] = row
        shown.scored(row["arch"], row)
    missing = [arch.id for arch in archs if arch.id not in rows]
    if missing:
        raise UserError(f"the scorer gave no row for {len(missing)} of {len(archs)} archs, the first {missing[0]}")
    return [rows[arch.id] for arch in archs]


class _Shown:
    """Shows a running search: counts of its scores, its best so far, and its notes."""

    def __init__(self, search: Any, progress: Progress, activity: Activity):
        self._search, self._progress, self._activity = search, progress, activity
        self._scored = self._failed = 0
        self._seen: set[str] = set()  # a search of the user's own may ask for an arch again
        self._passes = self._calibrations = 0.0  # seconds of scored archs
        self._stopped, self._share = 0, 0.0  # archs stopped early, and images that archs took if some are stopped
        self._summary = ""
        self._noted = 0

    def scored(self, arch: str, score: Any) -> None:
        """Count one arch's score."""
        self._count(arch, score)
        self._activity.update(self._scored, self._detail())

    def under_way(self, archs: float) -> None:
        """Count archs that are raced or on rungs; see `race`."""
        self._activity.update(self._scored + archs)

    def stopped(self, archs: Sequence[Arch], scores: Sequence[Mapping[str, Any]], images: int) -> None:
        """Count scores of which some were stopped early; a whole one takes all images."""
        for arch, score in zip(archs, scores, strict=True):
            self._stopped += score["status"] == "stopped"
            self._share += score["images"] / images
            self._count(arch.id, score)
        self._activity.update(self._scored, self._detail())

    def _count(self, arch: str, score: Any) -> None:
        if arch in self._seen:
            return
        self._seen.add(arch)
        self._scored += 1
        self._failed += _failed(score)
        if isinstance(score, Mapping):
            self._passes += score.get("seconds") or 0.0
            self._calibrations += score.get("calibration_seconds") or 0.0

    def notes(self) -> None:
        """Write the search's new notes, if it has any."""
        notes = self._search.notes
        for note in notes[self._noted :]:
            self._progress(f"{self._activity.what}: {note}")
        self._noted = len(notes)

    def told(self) -> None:
        """Read the search's best so far; call it between two `tell`."""
        self._summary = self._search.summary()
        self._activity.update(detail=self._detail(), total=self._search.budget)

    def end(self) -> None:
        """Write the last line."""
        calibrations = ""
        if self._calibrations:
            calibrations = f", {self._calibrations / (self._passes + self._calibrations):.0%} of the time calibrating"
        self._progress(f"{self._activity.what}: {self._activity.counted}, {self._detail()}{calibrations}")
        if self._stopped:
            share = f"{self._share / self._scored:.0%} of the image evaluations of whole scores"
            self._progress(f"{self._activity.what}: {self._stopped:,} archs were stopped early; it took {share}")

    def _detail(self) -> str:
        failed = f"{self._failed / max(1, self._scored):.0%} failed"
        stopped = f"{self._stopped:,} stopped early" if self._stopped else ""
        return ", ".join(part for part in (self._summary, failed, stopped) if part)


def _failed(score: Any) -> bool:
    if isinstance(score, Mapping):
        if score.get("status") == "stopped":
            return False
        return score.get("status") == "failed" or _failed(score.get("accuracy", 0.0))
    return score is None or (isinstance(score, float) and math.isnan(score))
