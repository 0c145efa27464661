"""Report section on phases: the time and energy that the run has taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raynas.reports.html import Note, Section, Table
from raynas.results.schemas import Row
from raynas.results.store import rows_by
from raynas.text import energy_text, seconds_text


def price_section(rows: Sequence[Row]) -> Section | None:
    """Return the section on time and energy of each phase, over all its attempts; None if there are none.

    Args:
        rows: rows of table `phases`.
    """
    if not rows:
        return None
    cells = [[phase, name, *_sums(found)] for (phase, name), found in rows_by(rows, "phase", "name").items()]
    header = ["phase", "name", "attempts", "machines", "time", "energy", "of", "not measured"]
    return Section(
        "Time and energy",
        [
            Table("phases", header, [*cells, ["all", None, *_sums(rows)]]),
            Note(
                "Attempts that were stopped or killed are in the sums. Energy is that of whole machines while a phase "
                "went on, whatever else they did; what could not be measured is not in it."
            ),
        ],
    )


def _sums(rows: Sequence[Row]) -> list[Any]:
    known = [row["joules"] for row in rows if row["joules"] is not None]
    energy = energy_text(sum(known)) if known else None
    if energy and len(known) < len(rows):
        energy = f"at least {energy}"
    machines = max((row["machines"] or 0 for row in rows), default=0) or None
    texts = ["; ".join(dict.fromkeys(row[name] for row in rows if row[name])) for name in ("measured", "unmeasured")]
    return [len(rows), machines, seconds_text(sum(row["seconds"] for row in rows)), energy, *(t or None for t in texts)]
