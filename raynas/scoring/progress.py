"""Scoring outside of a search, with progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raynas.progress.reporter import Progress, reporter
from raynas.results.schemas import Row
from raynas.space import Arch


def score_with_progress(scorer: Any, archs: Sequence[Arch], what: str, progress: Progress) -> list[Row]:
    """Score archs, and show how many are scored and the time left.

    Args:
        scorer: a `ScorePool` or `LocalScorer`, entered.
        archs: the archs.
        what: what lines begin with, such as `ranking`.
        progress: called with lines of text.

    Returns:
        Rows of table `scores`, one for each arch in the order given.
    """
    rows: dict[str, Row] = {}
    with reporter(progress).doing(what, len({arch.id for arch in archs}), "subnets scored") as activity:
        for row in scorer.score_iter(archs):
            rows[row["arch"]] = row
            activity.update(len(rows))
    return [dict(rows[arch.id]) for arch in archs]
