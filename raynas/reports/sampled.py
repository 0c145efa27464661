"""Scores of the sample of subnets that adapting a model makes, with untrained and with trained weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from raynas.runs.run import Run

RANGES = 6
"""Number of equal ranges of MACs that the sample is spread over, and shown by."""

RANDOM, ORDERED, ADAPTED = "random", "ordered", "adapted"
WORDS = {RANDOM: "random order", ORDERED: "order of importance", ADAPTED: "adapted"}


@dataclass(frozen=True)
class Sampled:
    """Scores of the same subnets with several weights, none of them trained alone.

    Attributes:
        macs: multiply-accumulates of the subnets.
        accuracy: accuracies by the weights (`random`, `ordered`, `adapted`), in the order of `macs`; NaN if unknown.
        importance: what units were ordered by.
    """

    macs: np.ndarray
    accuracy: Mapping[str, np.ndarray] = field(default_factory=dict)
    importance: str = ""

    def of_model(self) -> dict[str, float]:
        """Return the accuracy of the largest subnet, which is the model, by the weights."""
        largest = int(self.macs.argmax())
        return {name: float(values[largest]) for name, values in self.accuracy.items()}

    def ranges(self) -> list[tuple[float, float, np.ndarray]]:
        """Return the ends of each range of MACs, and which subnets lie in it, the cheapest range first."""
        if not len(self.macs):
            return []
        edges = np.linspace(self.macs.min(), self.macs.max(), RANGES + 1)
        places = np.clip(np.searchsorted(edges, self.macs, side="right") - 1, 0, RANGES - 1)
        found = [(edges[i], edges[i + 1], np.flatnonzero(places == i)) for i in range(RANGES)]
        return [(low, high, inside) for low, high, inside in found if len(inside)]


def sampled(run: Run) -> Sampled | None:
    """Return the scores of a run's sample; None if the run adapts no model, or has not scored it yet."""
    about = run.about_start
    if not about:
        return None
    prints = {name: about[name] for name in (RANDOM, ORDERED)}
    prints[ADAPTED] = run.about_supernet.get("fingerprint", "")
    columns = ["arch", "supernet", "macs", "accuracy", "status"]
    rows = run.table("scores", columns, pc.field("supernet").isin(list(prints.values()))).to_pylist()
    found = {name: {row["arch"]: row for row in rows if row["supernet"] == prints[name]} for name in prints}
    if not found[ORDERED]:
        return None
    macs = {arch: row["macs"] for arch, row in found[ORDERED].items()}
    known = {name: [rows.get(arch, {}).get("accuracy") for arch in macs] for name, rows in found.items() if rows}
    accuracy = {name: np.array(values, dtype=float) for name, values in known.items()}  # None is NaN
    return Sampled(np.array(list(macs.values()), float), accuracy, about["importance"])
