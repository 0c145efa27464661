"""The rows of table `latencies` that are valid for one device and one set of conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raynas.costs.columns import arch_columns
from raynas.latency.timing import TimedOn, Timing
from raynas.results.schemas import SCHEMAS, Row
from raynas.results.store import Store, having
from raynas.space import Arch


@dataclass(frozen=True)
class TimedArch:
    """Result of timing one arch: a timing, or the reason for its failure."""

    arch: Arch
    timing: Timing | None
    reason: str | None
    host: str
    predicted_ms: float | None = None


class Latencies:
    """Known timings on one device under one set of conditions.

    Args:
        store: the run's tables; None keeps rows in memory only.
        on: the device and conditions.
    """

    def __init__(self, store: Store | None, on: TimedOn):
        self.on = on
        self._store = store
        self._rows: dict[tuple[str, str], Row] = {}
        if store is not None:
            self._know(store.read("latencies", filter=having(on.model_dump())).to_pylist())

    def find(self, arch: Arch) -> Row | None:
        """Return the row of an arch in its space; None if it has not been timed."""
        return self._rows.get((arch.id, arch.space.fingerprint))

    def commit(self, outcomes: Sequence[TimedArch]) -> None:
        """Write the rows of results, then make them known to `find`.

        Raises:
            RunDirError: they cannot be written.
        """
        rows = [self._row(outcome) for outcome in outcomes]
        if self._store is not None:
            self._store.append("latencies", rows)
        self._know(rows)

    def _know(self, rows: Sequence[Row]) -> None:
        self._rows.update({(row["arch"], row["space"]): row for row in rows})

    def _row(self, outcome: TimedArch) -> Row:
        row: Row = dict.fromkeys(SCHEMAS["latencies"].names)
        del row["time"], row["versions"]  # filled by the store
        row |= {**arch_columns(outcome.arch), **self.on.model_dump(), "host": outcome.host}
        row["predicted_ms"] = outcome.predicted_ms
        timing = outcome.timing
        if timing is None:
            return row | {"status": "failed", "reason": outcome.reason}
        low, high = timing.quartiles
        return row | {
            "status": "ok",
            "ms": timing.ms,
            "ms_q1": low,
            "ms_q3": high,
            "passes": timing.passes,
            "ratio": timing.ratio,
            "images_per_s": timing.images_per_s,
        }


def on_of(row: Row) -> TimedOn:
    """Return the device and conditions of a row."""
    return TimedOn(**{name: row[name] for name in TimedOn.model_fields})
