"""Latency predictors fitted to the rows of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from raynas.errors import RunDirError, UserError
from raynas.latency.predictor import LatencyPredictor
from raynas.latency.rows import Latencies, on_of
from raynas.latency.timing import TimedOn
from raynas.results import Store
from raynas.results.schemas import Row
from raynas.space import Arch, Space

_CHUNK = 64


def archs_to_time(space: Space, n: int) -> list[Arch]:
    """Return up to n archs to fit a predictor to: the smallest, the largest, and random ones; always the same.

    A smaller n gives the first archs of a larger one. There are fewer only if the space has no more.
    """
    rng = np.random.default_rng(0)
    found = dict.fromkeys([space.smallest(), space.largest()])
    for _ in range(4 * n // _CHUNK + 8):
        if len(found) < n:
            found.update(dict.fromkeys(space.decode(space.sample_codes(rng, _CHUNK))))
    return list(found)[:n]


def fit_predictor(space: Space, rows: Sequence[Row]) -> LatencyPredictor:
    """Fit a predictor to rows of table `latencies`, without archs that could not be timed.

    Raises:
        UserError: the rows are of several devices, conditions or spaces, or fewer than 10 archs could be timed.
    """
    kinds = {(row["space"], str(on_of(row))) for row in rows}
    if len(kinds) > 1 or any(fingerprint != space.fingerprint for fingerprint, _ in kinds):
        known = "; ".join(sorted(f"space {fingerprint}, {on}" for fingerprint, on in kinds))
        raise UserError(f"a predictor is of one space on one device under one set of conditions, not of: {known}")
    good = [row for row in rows if row["status"] == "ok"]
    if not good:
        why = f", the first: {rows[0]['reason']}" if rows else ""
        raise UserError(f"none of {len(rows)} subnets could be timed{why}")
    codes = space.encode([space.arch(json.loads(row["values"])) for row in good])
    ms, ratio = (np.array([row[name] for row in good]) for name in ("ms", "ratio"))
    return LatencyPredictor(space, codes, ms, on_of(good[0]), ratio)


def stored_predictor(store: Store, space: Space, timings: int, on: TimedOn) -> LatencyPredictor:
    """Return the predictor of a run's searches, fitted to the rows of `archs_to_time`.

    Rows of other archs, such as winners, are ignored, so that it is the same before and after a search.

    Raises:
        RunDirError: the run lacks rows for it.
    """
    known = Latencies(store, on)
    found = [known.find(arch) for arch in archs_to_time(space, timings)]
    rows = [row for row in found if row is not None]
    if len(rows) < len(found):
        raise RunDirError(f"the run has {len(rows)} of the {len(found)} timings on {on} that its search goes by")
    return fit_predictor(space, rows)
