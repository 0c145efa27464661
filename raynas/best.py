"""The rule by which the best of several results is chosen, everywhere that something is: see `best_first`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def best_first(
    scores: Sequence[float], costs: Sequence[Sequence[float]] = (), losses: Sequence[float | None] = ()
) -> list[int]:
    """Indices of some results, the best first.

    Of equal scores the one of the lower cost comes first, then the one of the lower loss, then the one that stands
    first.

    Args:
        scores: what is chosen by; smaller is better.
        costs: of each kind that counts, the most important first, the cost of each result; smaller is better.
        losses: the loss of each result; None where it is not known, which comes last. Left out: none is known.
    """
    known = [math.inf if loss is None else loss for loss in losses]
    keys = [np.asarray(each, dtype=np.float64) for each in (scores, *costs, *([known] if known else []))]
    order: list[int] = np.lexsort(keys[::-1]).tolist()
    return order
