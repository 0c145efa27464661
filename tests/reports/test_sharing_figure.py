"""The figure of weight-sharing patterns shows what the patterns are."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from raynas.nets.cyclic import cyclic_starts
from raynas.reports.html import Picture
from raynas.reports.sharing import sharing_figure, sharing_section
from raynas.space import load_space


def test_cells_and_bars_are_the_pattern() -> None:
    figure = sharing_figure(8)
    names = [axes.get_title(loc="left") for axes in figure.axes[:3]]
    assert names == ["ordinal: gap 5.28", "bilateral: gap 0.53", "cyclic: gap 0.24"]
    pattern = cyclic_starts(8)
    drawn = np.zeros((8, 8), dtype=bool)
    for cell in figure.axes[2].patches:
        assert isinstance(cell, Rectangle)
        x, y = cell.get_center()
        drawn[round(y) - 1, round(x) - 1] = True
    assert (drawn == pattern.table).all()
    heights = [bar.get_height() for bar in figure.axes[5].patches if isinstance(bar, Rectangle)]
    assert heights == pytest.approx([float(x) for x in pattern.influences])


def test_section_names_the_gaps_of_a_space_that_shares_cyclically() -> None:
    section = sharing_section(load_space("vitas/deit_tiny"))
    assert section is not None
    text, picture = section.parts
    assert isinstance(text, str) and "by the cyclic pattern" in text
    assert isinstance(picture, Picture) and picture.table is not None
    assert [row[1] for row in picture.table.rows] == pytest.approx([7.0710, 0.7867, 0.2671], abs=5e-5)
    assert sharing_section(load_space("digits/vit")) is None
