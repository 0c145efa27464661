"""The report of an evolution: every number of its tables is on the page, and what the figures show is said in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from raynas.errors import RunDirError
from raynas.outer.evolution.loop import evolve_space
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.reports.collect import collect
from raynas.reports.evolution import choices_by_iteration, error_distributions
from raynas.reports.page import write_report
from raynas.runs.run import Run
from tests.outer.outer_parts import Bowl, vit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(tmp_path_factory.mktemp("evolution") / "run", create=True)
    space = vit(width=[16, 32, 48], depth=[2, 3], heads=[2], mlp_ratio=[1.0, 2.0])
    bowl = Bowl({"width": 112, "mlp_ratio": 3.0}, {"width": 16, "mlp_ratio": 1.0}, noise=0.001)
    evolve_space(run, space, SpaceEvolutionConfig(iterations=3, archs=60, most_steps=2), bowl)
    return run


def test_the_page_says_what_was_measured(run: Run) -> None:
    page = Path(write_report(run, collect(run))).read_text()
    for row in run.store.read("spaces").to_pylist():
        for value in (f"{row['error']:.2%}", f"{row['best_error']:.2%}", row["best"], f"{row['best_macs']:,}"):
            assert value in page
    for row in run.store.read("space_moves").to_pylist():
        assert row["axis"] in page and ", ".join(f"{choice:g}" for choice in json.loads(row["after"])) in page
    assert "The space evolved over 3 iteration(s)" in page and "The result" not in page
    assert "The evolution ended with the last space: it was the last iteration" in page and "The test split" not in page


def test_it_is_no_run_to_search_and_says_which_are(run: Run) -> None:
    for wanted in (lambda: run.arch("best"), lambda: run.space, lambda: run.require("preset.yaml")):
        with pytest.raises(RunDirError, match=r"is an evolution of spaces.* such as .*/iterations/0: give one"):
            wanted()


def test_the_figures_show_the_rows(run: Run) -> None:
    moves = run.store.read("space_moves").to_pylist()
    figure = choices_by_iteration(moves)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "width",
        "depth",
        "mlp ratio",
    ]  # heads had one choice
    drawn = {tuple(np.asarray(line.get_ydata())) for line in figure.axes[0].lines}
    assert drawn == {tuple(json.loads(row["choices"])) for row in moves if row["axis"] == "width"}
    scores = run.store.read("space_scores").to_pylist()
    errors = {str(i): np.sort([1 - row["accuracy"] for row in scores if row["iteration"] == i]) for i in range(3)}
    curves = error_distributions(errors).axes[0].lines
    for curve, expected in zip(curves, errors.values(), strict=True):
        assert np.array_equal(np.asarray(curve.get_xdata()), expected)
        assert np.asarray(curve.get_ydata())[-1] == 1
