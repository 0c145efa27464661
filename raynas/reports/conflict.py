"""What a report shows of conflicting gradients in the supernet's training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from raynas.reports import figures, html
from raynas.reports.html import Percent

Row = dict[str, Any]


def conflict_section(rows: Sequence[Row]) -> str:
    """The section on the conflict ratio; empty where it was not measured.

    Args:
        rows: of the table `training`, all of them.
    """
    found = {row["epoch"]: row for row in rows if row["what"] == "supernet" and row["conflict"] is not None}
    if not found:
        return ""
    epochs = sorted(found)
    ratio = [found[epoch]["conflict"] for epoch in epochs]
    curves = {"conflict ratio": (np.array(epochs), np.array(ratio))}
    picture = html.figure(
        figures.svg(figures.epoch_curves(curves, "layers in conflict"), "conflict"),
        f"Line chart of the conflict ratio over {len(epochs)} epochs, from {ratio[0]:.2%} to {ratio[-1]:.2%}.",
        "How often the gradient of the largest subnet and that of the others point apart (the cosine is negative), of "
        "all layers at all steps where they were compared.",
        html.table(
            "conflicts", ["epoch", "in conflict"], [[e, Percent(r)] for e, r in zip(epochs, ratio, strict=True)]
        ),
    )
    layers = json.loads(found[epochs[-1]]["conflict_layers"] or "{}")
    most = sorted(layers.items(), key=lambda item: -item[1])
    table = html.table("layers", ["layer, in the last epoch", "in conflict"], [[name, Percent(r)] for name, r in most])
    return html.section("Conflicting gradients", picture, table if layers else "")
