"""Figures of a run show what its tables hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import raynas
from raynas.errors import RunDirError, UserError
from raynas.runs.run import Run
from tests.small_run import small_run

DEMO = Path(__file__).parents[1] / "golden/runs/demo"


@pytest.fixture(scope="module")
def demo() -> Run:
    return raynas.open_run(DEMO)


def test_the_course_of_a_search_is_a_table(demo: Run) -> None:
    course = demo.search().course().to_pandas()
    scores = demo.scores().to_pandas().set_index("arch").loc[course["arch"]]
    assert len(course) == 24 and (course["accuracy"].to_numpy() == scores["accuracy"].to_numpy()).all()
    assert (course["macs"].to_numpy() == scores["macs"].to_numpy()).all()


def test_the_front_and_the_limits_are_drawn(demo: Run) -> None:
    (axes,) = demo.plot_front().axes
    points = np.vstack([collection.get_offsets() for collection in axes.collections])
    rows = demo.scores().to_pylist()
    assert set(map(tuple, points.tolist())) == {(row["macs"], row["accuracy"]) for row in rows}
    front, limit = axes.lines[:2]
    assert np.asarray(front.get_ydata())[-1] == max(row["accuracy"] for row in rows)
    assert np.asarray(limit.get_xdata())[0] == 2e6
    assert "parameters" in demo.plot_front("params").axes[0].get_xlabel()
    with pytest.raises(UserError, match="did you mean 'macs'"):
        demo.plot_front("mac")
    with pytest.raises(UserError, match="do not go by it"):
        demo.plot_front("latency")


def test_the_progress_of_each_search_is_drawn(demo: Run) -> None:
    (axes,) = demo.plot_progress().axes
    assert [line.get_label() for line in axes.lines] == demo.searches()
    best = max(row["accuracy"] for row in demo.search().comparable_scores().values() if row["accuracy"] is not None)
    assert max(np.asarray(line.get_ydata())[-1] for line in axes.lines) == best


def test_an_arch_is_drawn_block_by_block(demo: Run) -> None:
    assert len(demo.plot_arch().axes) == 3
    assert len(demo.plot_arch(demo.space.smallest()).axes) == 3
    with pytest.raises(UserError, match="give an arch or its name, not int 5"):
        demo.plot_arch(5)  # type: ignore[arg-type]


def test_without_scores_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    for draw in (run.plot_front, run.plot_progress):
        with pytest.raises(RunDirError, match="raynas search"):
            draw()
