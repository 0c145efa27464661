"""The section on rankings shows what their rows say, the newest of each pair of quantities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from raynas import figures
from raynas.reports.collect import collect
from raynas.reports.page import write_report
from raynas.runs.run import Run
from tests.reports.test_report import Page

STATISTICS = {"pearson": 0.5, "spearman": 0.4, "kendall": 0.3}


def rows(x: str, y: str, shift: float, ranges: int = 0) -> list[dict[str, Any]]:
    """Correlations over all networks and within ranges of 100 MACs; value - 0.1 to value + 0.2."""
    places: list[dict[str, Any]] = [{"bucket": i, "low": 100.0 * i, "high": 100.0 * (i + 1)} for i in range(ranges)]
    places.append({"bucket": None, "low": 0.0, "high": 100.0 * max(1, ranges)})
    values = {name: value + shift for name, value in STATISTICS.items()}
    return [
        {"x": x, "y": y, **place, "statistic": name, "value": v, "lower": v - 0.1, "upper": v + 0.2, "networks": 40}
        for place in places
        for name, v in values.items()
    ]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", create=True)


def test_the_newest_of_each_pair_is_shown(run: Run) -> None:
    run.store.append("rankings", [*rows("macs", "inherited", 0.0, ranges=4), *rows("inherited", "scratch", 0.1)])
    run.store.append("rankings", rows("macs", "inherited", 0.2, ranges=2))
    page = Page(Path(write_report(run, collect(run))).read_text())
    table = page.rows("rankings")
    assert [(row["accuracy of, by"], row["range"], row["Kendall's tau"]) for row in table] == [
        ("trained from scratch by inherited weights", "all", "0.4000"),
        ("inherited weights by MACs", "0", "0.5000"),
        ("inherited weights by MACs", "1", "0.5000"),
        ("inherited weights by MACs", "all", "0.5000"),
    ]
    assert table[0]["95 % interval of Spearman's rho"] == "0.40 to 0.70" and table[0]["networks"] == "40"
    assert (table[2]["from MACs"], table[2]["to MACs"]) == ("100.0", "200.0")
    (label,) = page.labels
    assert "inherited weights by MACs 0.50 [0.40 to 0.70]" in label and page.fetched == []


def test_without_rankings_there_is_no_section(run: Run) -> None:
    assert "rank subnets" not in Path(write_report(run, collect(run))).read_text()


def test_what_could_not_be_correlated_is_told(run: Run) -> None:
    none = {"value": None, "lower": None, "upper": None, "networks": 3}
    run.store.append("rankings", [{**row, **none} for row in rows("macs", "inherited", 0.0)])
    page = Page(Path(write_report(run, collect(run))).read_text())
    assert "no correlation can be computed" in page.text and page.labels == []
    assert page.rows("rankings")[0]["Pearson's r"] == "-"


def test_marks_and_bars_stand_where_the_numbers_are() -> None:
    tau = {"tau": (0.3, 0.1, 0.6)}
    both = {"rho": (0.5, 0.4, 0.7), **tau}
    figure = figures.rankings({"a by b": both, "c by d": tau}, [(0, 10, both), (10, 20, {}), (20, 40, tau)])
    above, below = figure.axes
    marks = {str(line.get_label()): np.array(line.get_xydata()) for line in above.lines if line.get_marker() != "None"}
    assert marks["rho"] == pytest.approx(np.array([[4, 0.5]]))  # aside of the middle by a tenth of the range
    assert marks["tau"] == pytest.approx(np.array([[6, 0.3], [32, 0.3]]))
    lines = [collection for collection in below.collections if isinstance(collection, LineCollection)]
    bars = [np.array(segment) for collection in lines for segment in collection.get_segments()]
    assert [bar[:, 0].tolist() for bar in bars] == [[0.4, 0.7], [0.1, 0.6], [0.1, 0.6]]
    assert [text.get_text() for text in below.get_yticklabels()] == ["a\nby b", "c\nby d"]
