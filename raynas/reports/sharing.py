"""Report section on weight sharing: the groups of an axis that each width trains, and how evenly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from raynas import figures
from raynas.nets.cyclic import bilateral_tables, cyclic_starts, gap, influences, ordinal_table
from raynas.reports.html import Section, Table, drawn
from raynas.space import Space

GROUPS = 10
"""Number of groups in the figure if the space has none of its own (bilateral sharing), as in ViTAS."""


def sharing_figure(groups: int) -> Figure:
    """Draw ordinal, bilateral and cyclic sharing of one axis side by side (ViTAS v2, Figures 1 and 10).

    Args:
        groups: number of groups of the axis, 1 to 48.

    Raises:
        UserError: there is no cyclic pattern of so many groups.
    """
    return figures.sharing_patterns(_patterns(groups))


def sharing_section(space: Space) -> Section | None:
    """Return the section on a space's weight sharing, beside the other patterns; None for ordinal sharing."""
    sharing, groups = space.constants.sharing, space.constants.groups or GROUPS
    if sharing == "ordinal":
        return None
    rows = []
    for name, paths in _patterns(groups).items():
        found = influences(*paths)
        rows.append([name, float(gap(found)), float(min(found)), float(max(found)), name == sharing])
    header = ["pattern", "gap", "least influence", "greatest influence", "this space's"]
    gaps = ", ".join(f"{row[0]} {row[1]:.2f}" for row in rows)
    picture = drawn(
        sharing_figure(groups),
        "sharing",
        f"Which of {groups} groups each width uses, by three patterns of weight sharing. Their gaps: {gaps}.",
        f"Which of {groups} groups of channels each width uses (bilateral: a left and a right path), and the influence "
        "that training all widths has on each group: the sum of 1/width over the widths that use it, 1 on average. The "
        "gap is the sum of the squared deviations from 1.",
        Table("sharing", header, rows),
    )
    text = f"The narrower widths of an axis use channels of the widest one, in this space by the {sharing} pattern."
    return Section("Weight sharing", [text, picture])


def _patterns(groups: int) -> dict[str, Sequence[np.ndarray]]:
    return {
        "ordinal": [ordinal_table(groups)],
        "bilateral": bilateral_tables(groups),
        "cyclic": [cyclic_starts(groups).table],
    }
