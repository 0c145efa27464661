"""Measurements of speed in rounds, beside those of a reference, and the table of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raynas.comparison import mean_interval
from raynas.progress.reporter import Progress, reporter, silent
from raynas.text import columns


@dataclass(frozen=True)
class Measured:
    """One row: what was measured in each round, and the reference in the same rounds.

    Attributes:
        name: what is measured; with a reference also against what.
        unit: of the values: `s`, or something a second.
        ours: a value for each round.
        reference: the reference's values; none if there is nothing to compare with.
    """

    name: str
    unit: str
    ours: tuple[float, ...]
    reference: tuple[float, ...] = ()

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours over the reference, in each round; none without a reference."""
        if not self.reference:
            return ()
        return tuple(mine / theirs for mine, theirs in zip(self.ours, self.reference, strict=True))


def in_turns(
    kinds: Mapping[str, Callable[[], float]], rounds: int, progress: Progress = silent
) -> dict[str, tuple[float, ...]]:
    """Measure several kinds, one after the other in every round, so that other work on the machine affects all equally.

    Args:
        kinds: a function for each name; it returns the value measured, such as seconds.
        rounds: values of each kind, after a round that warms up.

    Returns:
        The values by name.
    """
    values: dict[str, list[float]] = {name: [] for name in kinds}
    with reporter(progress).doing("measuring", rounds, "rounds") as activity:
        for round_ in range(rounds + 1):
            for name, measure in kinds.items():
                values[name].append(measure())
            activity.update(round_, ", ".join(f"{name} {found[-1]:.4g}" for name, found in values.items()))
    return {name: tuple(found[1:]) for name, found in values.items()}


def a_second(work: Callable[[], int]) -> Callable[[], float]:
    """Return the measurement of a function: what it returns (a count), for each second of processor time it takes."""

    def measure() -> float:
        began = time.process_time()
        done = work()
        return done / (time.process_time() - began)

    return measure


def table(rows: Sequence[Measured]) -> list[str]:
    """Return the lines of the table: medians over the rounds, and the least and the greatest value or ratio."""
    compared = any(row.reference for row in rows)
    listed = [["", "ours", *(["reference"] if compared else []), "unit", *(["ratio"] if compared else []), "spread"]]
    for row in rows:
        cells = [row.name, _short(np.median(row.ours))]
        if compared:
            cells.append(_short(np.median(row.reference)) if row.reference else "")
        cells.append(row.unit)
        if compared:
            cells.append(f"{np.median(row.ratios):.3f}" if row.reference else "")
        least, greatest = (f(row.ratios or row.ours) for f in (min, max))
        cells.append(f"{least:.3f} to {greatest:.3f}" if row.reference else f"{_short(least)} to {_short(greatest)}")
        listed.append(cells)
    return columns(listed)


def over_seeds(values: np.ndarray, decimals: int) -> str:
    """Return the mean of values over seeds and half the width of its 95 % interval, for a table."""
    mean, half = mean_interval(values.tolist())
    return f"{mean:.{decimals}f}" if half is None else f"{mean:.{decimals}f} ± {half:.{decimals}f}"


def _short(value: float | np.floating) -> str:
    """Format a value with three digits that count, or as a whole number."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
