"""The report's section on attention has the numbers of the evaluations."""

from __future__ import annotations

from raynas.reports.attention import attention_section
from raynas.reports.collect import Finished
from raynas.reports.html import Picture

ROW = {"distances": [[1.0, 3.0], [2.5]], "similarities": [0.4, None]}


def finished(label: str, **row: object) -> Finished:
    return Finished(label, "inherited", None, "0" * 12, 5, 5, tested=[row] if row else [])


def test_a_row_for_each_block_of_each_network_that_was_looked_at() -> None:
    section = attention_section([finished("winner", **ROW), finished("old", distances=None), finished("not tested")])
    assert section is not None
    (picture,) = section.parts
    assert isinstance(picture, Picture) and picture.table is not None
    assert [row[1:] for row in picture.table.rows] == [[1, 2, 1.0, 2.0, 3.0, 0.4], [2, 1, 2.5, 2.5, 2.5, None]]
    assert attention_section([finished("old", distances=None)]) is None
