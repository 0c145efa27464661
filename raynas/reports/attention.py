"""Report section on attention: how far heads look, and how alike they are, block by block."""

from __future__ import annotations

from collections.abc import Sequence

from raynas import figures
from raynas.reports.collect import Finished
from raynas.reports.html import Section, Table, drawn

MOST = 3
"""Number of networks in the figure."""


def attention_section(finished: Sequence[Finished]) -> Section | None:
    """Return the section on the attention of evaluated networks, each with its first seed; None if none has any."""
    of = {each.name: each.tested[0] for each in finished if each.tested and each.tested[0]["distances"]}
    if not of:
        return None
    shown = dict(list(of.items())[:MOST])
    header = [
        "network",
        "block",
        "heads",
        "least distance",
        "mean distance",
        "greatest distance",
        "similarity of heads",
    ]
    rows = [
        [name, block, len(heads), min(heads), sum(heads) / len(heads), max(heads), alike]
        for name, row in of.items()
        for block, (heads, alike) in enumerate(zip(row["distances"], row["similarities"], strict=True), start=1)
    ]
    caption = (
        "Mean distance between a token and what it attends to, in pixels, one mark for each head, on some test images; "
        "class tokens are left out. The table has the mean cosine similarity of two heads' attention, too."
    )
    picture = drawn(
        figures.attention_distances({name: row["distances"] for name, row in shown.items()}),
        "attention",
        f"Mean attention distance of the heads of {', '.join(shown)}, block by block.",
        caption,
        Table("attention", header, rows),
    )
    return Section("Attention", [picture])
