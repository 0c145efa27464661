"""Progress lines of scoring outside of a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from raynas.results.schemas import Row
from raynas.space import Arch
from raynas.text import duration

EVERY_S = 4.0  # between two lines


def score_with_progress(
    scorer: Any, archs: Sequence[Arch], what: str, say: Callable[[str], None] | None
) -> list[dict[str, Any]]:
    """Score archs, with a line every few seconds that says how many are scored and the time left.

    Args:
        scorer: a `ScorePool` or `LocalScorer`, entered.
        archs: the archs.
        what: what lines begin with, such as `ranking`.
        say: called with the lines; None for silence.

    Returns:
        Rows of table `scores`, one for each arch in the order given.
    """
    total = len({arch.id for arch in archs})
    began = said = time.monotonic()
    rows: dict[str, Row] = {}
    for row in scorer.score_iter(archs):
        rows[row["arch"]] = row
        now = time.monotonic()
        if say is not None and now - said >= EVERY_S:
            said = now
            left = (now - began) / len(rows) * (total - len(rows))
            say(f"{what}: {len(rows):,}/{total:,} subnets scored, {duration(left)} left")
    return [dict(rows[arch.id]) for arch in archs]
