"""The table of an ablation, against numbers computed by hand."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from raynas.reports.ablation import AblationTable, Column, Line

TESTED = Column("tested", "winner, retrained, test split", "%", "max")
SECONDS = Column("seconds", "time", "s", "min")


def table() -> AblationTable:
    """Differences to `all` of tested: 0.2, -0.2 and 0.6 points, and -5, -5.1 and -4.9; of seconds: 1 and 1."""
    everything = {"tested": {0: 0.929, 1: 0.929, 2: 0.93}, "seconds": {0: 10.0, 1: 11.0}}
    no_mixup = {"tested": {0: 0.931, 1: 0.927, 2: 0.936}, "seconds": {0: 11.0, 1: 12.0}}
    no_erasing = {"tested": {0: 0.879, 1: 0.878, 2: 0.881}}
    lines = [
        Line("all", ["mixup", "erasing"], "", everything, {}, {"tested": 80.0}),
        Line("no mixup", ["erasing"], "", no_mixup, {}, {"tested": 80.9}),
        Line("no <erasing>", ["mixup"], "", no_erasing, {}, {}),
        Line("none", [], "", {"tested": {0: 0.5}, "seconds": {0: math.nan}}, {1: "out of memory"}, {}),
    ]
    columns = [TESTED, SECONDS]
    return AblationTable("Recipes", "a paper, Table 1", ["mixup", "erasing"], columns, lines, "all", [0, 1, 2])


def test_means_and_intervals_are_those_computed_by_hand() -> None:
    rows = {(row["row"], row["measure"]): row for row in table().compared()}
    row = rows["no mixup", "tested"]
    assert row["mean"] == pytest.approx((0.931 + 0.927 + 0.936) / 3)
    assert row["difference"] == pytest.approx(0.002)
    assert row["difference_half"] == pytest.approx(4.302653 * 0.004 / math.sqrt(3), rel=1e-6)
    assert row["decided"] is False and row["seeds_to_decide"] == 18  # as deviation 2, mean 1: t of 17 is 2.110
    assert row["published"] == pytest.approx(0.809) and row["published_difference"] == pytest.approx(0.009)
    worse = rows["no <erasing>", "tested"]
    assert worse["difference"] == pytest.approx(-0.05) and worse["decided"] is True
    assert worse["difference_half"] == pytest.approx(4.302653 * 0.001 / math.sqrt(3), rel=1e-6)
    single = rows["none", "tested"]
    assert (single["mean"], single["half"], single["decided"], single["failed"]) == (0.5, None, None, 1)
    assert rows["none", "seconds"]["mean"] is None
    assert rows["no mixup", "seconds"]["difference_half"] == 0 and rows["no mixup", "seconds"]["decided"] is True
    assert rows["all", "tested"]["difference"] is None


def test_markdown_has_a_mark_for_each_toggle_and_the_papers_figures_beside_ours() -> None:
    text = table().markdown()
    lines = text.splitlines()
    assert lines[0] == "# Recipes"
    assert "| all (baseline) | ✓ | ✓ | 3 | 92.93 ± 0.14 | 80.00 | 10.5 ± 6.4 |" in lines
    assert "| no mixup |  | ✓ | 3 | 93.13 ± 1.12 | 80.90 | 11.5 ± 6.4 |" in lines
    assert "| none |  |  | 1 of 3, 1 failed | 50.00 | - | - |" in lines
    assert "| no mixup | +0.20 ± 0.99 | no; 18 seeds could | +0.90 | +1.0 ± 0.0 | worse |" in lines
    assert "| no <erasing> | -5.00 ± 0.25 | worse | - | - | - |" in lines
    assert "| none | -42.90 | one seed | - | - | - |" in lines
    assert "none, seed 1, failed: out of memory" in text and "(a paper, Table 1)" in text
    lead = "By winner, retrained, test split, %, compared with all: no <erasing> -5.00 ± 0.25."
    assert f"4 rows with 3 seed(s), 10 of 12 trials finished. {lead}" in text


def test_differences_that_cancel_are_not_equal_results() -> None:
    base, other = {0: 0.5, 1: 0.75}, {0: 0.75, 1: 0.5}
    lines = [Line(name, [], "", {"tested": each}, {}, {}) for name, each in (("a", base), ("b", other), ("c", base))]
    text = AblationTable("", "", [], [TESTED], lines, "a", [0, 1]).markdown()
    assert "| b | +0.00 ± 317.66 | no; over 1,000 seeds |" in text and "| c | +0.00 ± 0.00 | equal |" in text


def test_arrow_has_the_numbers() -> None:
    read = pa.ipc.open_file(table().arrow()).read_all()
    assert read.num_rows == 8 and read.to_pylist() == [
        {**row, "values": [float(value) for value in row["values"]]} for row in table().compared()
    ]


def test_the_page_escapes_names_and_holds_the_figure() -> None:
    page = table().page()
    assert "no &lt;erasing&gt;" in page and "no <erasing>" not in page.replace("no <erasing> -5", "")
    assert page.count("<svg") == 1 and "Diamonds are a paper" in page
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    words = "".join(ElementTree.fromstring(svg).itertext())
    assert "no mixup" in words and "difference to all" in words
    assert table().png().startswith(b"\x89PNG")


def test_a_table_without_results_says_so() -> None:
    lines = [Line("a", [], "recipe.lr=1", {}, {}, {}), Line("b", [], "", {}, {}, {})]
    empty = AblationTable("", "", [], [TESTED], lines, "a", [0])
    assert "There is nothing to compare yet." in empty.markdown()
    assert "| a (baseline) | recipe.lr=1 | 0 of 1 | - |" in empty.markdown()
    assert empty.page() and pa.ipc.open_file(empty.arrow()).read_all()["mean"].null_count == 2
