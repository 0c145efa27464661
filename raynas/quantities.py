"""Names and units of costs in figures and reports: MACs, parameters, latency, throughput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A cost in words.

    Attributes:
        title: name in headings and columns.
        unit: unit after a value.
        axis: label of its axis.
        measured: column of `Timed.rows` with its measured values; None if it is counted exactly.
        higher_is_better: True if high values are the cheap ones.
    """

    title: str
    unit: str
    axis: str
    measured: str | None = None
    higher_is_better: bool = False


QUANTITIES: Mapping[str, Quantity] = {
    "macs": Quantity("MACs", "MACs", "multiply-accumulates (MACs)"),
    "paper_macs": Quantity("MACs as papers count", "MACs as papers count", "multiply-accumulates as papers count them"),
    "params": Quantity("parameters", "parameters", "parameters"),
    "latency": Quantity("latency", "ms", "latency of a batch (ms)", "ms"),
    "throughput": Quantity("throughput", "images/s", "images in a second", "images_per_s", higher_is_better=True),
}


def amount(name: str, value: float | None) -> str:
    """Return a value of a quantity with its unit: `1.2M MACs`, `8.25 ms`."""
    return f"{number(name, value)} {QUANTITIES[name].unit}"


def number(name: str, value: float | None) -> str:
    """Return a value of a quantity: three digits and a letter if it is counted, four digits if it is measured."""
    if value is None:
        return "?"
    if QUANTITIES[name].measured is not None:
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    for letter, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:  # which is rounded up to it
            return f"{value / size:.3g}{letter}"
    return f"{value:g}"


def bounds_text(name: str, bounds: tuple[float | None, float | None]) -> str:
    """Return bounds in words: `at most 9 ms`; empty if both sides are open."""
    low, high = bounds
    if low is None:
        return "" if high is None else f"at most {amount(name, high)}"
    return f"at least {amount(name, low)}" if high is None else f"{number(name, low)} to {amount(name, high)}"
