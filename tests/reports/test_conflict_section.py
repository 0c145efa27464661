"""The conflict ratio goes from the loop's history through the table to the page."""

from __future__ import annotations

import json
from pathlib import Path

from raynas.data.load import load_data
from raynas.phases.training_record import Recorder
from raynas.reports.conflict import conflict_section
from raynas.reports.html import Picture, Table
from raynas.runs.run import Run
from tests.small_run import PRESET, SPACE


def test_the_page_shows_what_was_counted(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    recorder = Recorder(run, SPACE, load_data("digits"), PRESET.recipe)
    layers = {"blocks.0.attn.qkv": 0.25, "head": 0.75}
    first = {"epoch": 1, "step": 5, "loss": 2.0, "conflict": 0.125}
    recorder.history([first, {"epoch": 1, "step": 5, "event": "rollback"}])
    without = run.store.read("training").to_pylist()[1]
    assert (without["conflict"], without["conflict_layers"]) == (None, None)
    recorder.history(
        [
            first,
            {"epoch": 1, "step": 5, "event": "rollback"},
            {**first, "epoch": 2, "conflict": 0.5, "conflict_layers": layers},
        ]
    )
    rows = run.store.read("training").to_pylist()
    assert json.loads(rows[2]["conflict_layers"]) == layers
    section = conflict_section(rows)
    assert section is not None
    picture, table = section.parts
    assert isinstance(picture, Picture) and "from 12.50% to 50.00%" in picture.svg
    assert isinstance(table, Table) and [row[0] for row in table.rows] == ["head", "blocks.0.attn.qkv"]
    assert conflict_section([without]) is None
