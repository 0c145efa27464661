"""Report section on conflicting gradients in the supernet's training."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from raynas import figures
from raynas.reports.html import Percent, Section, Table, drawn
from raynas.results.schemas import Row


def conflict_section(rows: Sequence[Row]) -> Section | None:
    """Return the section on the conflict ratio; None if it was not measured.

    Args:
        rows: all rows of table `training`.
    """
    found = {row["epoch"]: row for row in rows if row["what"] == "supernet" and row["conflict"] is not None}
    if not found:
        return None
    epochs = sorted(found)
    ratio = [found[epoch]["conflict"] for epoch in epochs]
    curves = {"conflict ratio": (np.array(epochs), np.array(ratio))}
    picture = drawn(
        figures.epoch_curves(curves, "layers in conflict"),
        "conflict",
        f"Line chart of the conflict ratio over {len(epochs)} epochs, from {ratio[0]:.2%} to {ratio[-1]:.2%}.",
        "Share of layers, over all compared steps, at which the gradient of the largest subnet and that of the others "
        "point apart (their cosine is negative).",
        Table("conflicts", ["epoch", "in conflict"], [[e, Percent(r)] for e, r in zip(epochs, ratio, strict=True)]),
    )
    layers = json.loads(found[epochs[-1]]["conflict_layers"] or "{}")
    most = sorted(layers.items(), key=lambda item: -item[1])
    table = Table("layers", ["layer, in the last epoch", "in conflict"], [[name, Percent(r)] for name, r in most])
    return Section("Conflicting gradients", [picture, table if layers else None])
