"""Many subnets timed one after the other, each once and for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext

from raynas.errors import UserError
from raynas.latency.rows import Latencies, TimedArch
from raynas.latency.stopwatch import RemoteStopwatch, Stopwatch, stopwatch
from raynas.latency.timing import Conditions, TimedOn
from raynas.progress.reporter import Progress, reporter, silent
from raynas.results import Store
from raynas.results.schemas import Row
from raynas.space import Arch

COMMIT_S = 4.0  # the timings of so many seconds are written together


def time_archs(
    store: Store | None,
    archs: Sequence[Arch],
    conditions: Conditions,
    resources: Mapping[str, float] | None = None,
    on: TimedOn | None = None,
    predicted_ms: Sequence[float] | None = None,
    progress: Progress = silent,
    attempt: Callable[[], AbstractContextManager[None]] = nullcontext,
    check: Callable[[Arch, float], None] = lambda arch, ms: None,
) -> list[Row]:
    """Time subnets on the device that the conditions name, and keep the rows.

    What has been timed on this very device, under these conditions and with this version of torch, is answered from its
    row; nothing else is. Stopped and called again, it goes on where it was.

    Args:
        store: the tables of a run, which keep the rows; None for nowhere.
        archs: archs of any space.
        resources: resources of the Ray actor that times, by Ray's names; None to time in this process.
        on: device and conditions of earlier timings, which must be those of these.
        predicted_ms: predicted latency of each arch, for its row.
        attempt: the block within which they are timed, where any are.
        check: called with each arch and its milliseconds, before others are timed; what it raises ends the timing.

    Returns:
        Rows of table `latencies`, one for each arch in the order given. An arch that cannot be timed has one, too:
        `status` failed, and the `reason`.

    Raises:
        UserError: there is no such device, or it is not what `on` says.
        ClusterError: one node after the other was lost on which timing was to begin; the timings before are kept.
        RunDirError: rows cannot be written.
    """
    predicted = dict(zip(archs, predicted_ms, strict=True)) if predicted_ms is not None else {}
    with ExitStack() as stack:
        known = None if on is None else Latencies(store, on)
        if known is None or any(known.find(arch) is None for arch in archs):
            watch = stack.enter_context(stopwatch(conditions, resources, progress))
            if on not in (None, watch.on):
                raise UserError(
                    f"earlier timings are on {on}; here it is {watch.on}, of which they say nothing: go on there, or "
                    "begin another search (--name)"
                )
            known = known or Latencies(store, watch.on)
            for arch in archs:
                if (row := known.find(arch)) is not None and row["status"] == "ok":
                    check(arch, row["ms"])
            # Archs of several spaces may be equal, and yet have other networks.
            missing = {(arch.id, arch.space.fingerprint): arch for arch in archs if known.find(arch) is None}
            stack.enter_context(attempt())
            _time(watch, list(missing.values()), predicted, known, progress, check)
        found = [known.find(arch) for arch in archs]
    return [dict(row) for row in found if row is not None]


def _time(
    watch: Stopwatch | RemoteStopwatch,
    archs: Sequence[Arch],
    predicted: Mapping[Arch, float],
    known: Latencies,
    progress: Progress,
    check: Callable[[Arch, float], None],
) -> None:
    finished: list[TimedArch] = []
    written = time.monotonic()
    try:
        with reporter(progress).doing("timing", len(archs), f"subnets on {watch.on.device}") as activity:
            for arch in archs:
                outcome = watch.time(arch)
                finished.append(TimedArch(arch, outcome.timing, outcome.reason, outcome.host, predicted.get(arch)))
                activity.advance()
                if outcome.timing is not None:
                    check(arch, outcome.timing.ms)
                if time.monotonic() - written > COMMIT_S:
                    known.commit(finished)
                    finished, written = [], time.monotonic()
    finally:  # stopped by hand, what is done is kept
        known.commit(finished)
