"""The benchmark of archs does what it says; the rates are the machine's matter."""

from __future__ import annotations

import pytest

from raynas.bench.archs import bench_archs
from raynas.bench.measured import Measured, in_turns, table
from raynas.commands.main import main


def test_kinds_take_turns_after_a_round_that_warms_up() -> None:
    done: list[str] = []

    def kind(name: str) -> float:
        done.append(name)
        return float(len(done))

    values = in_turns({name: lambda name=name: kind(name) for name in "ab"}, 2)  # type: ignore[misc]
    assert done == ["a", "b"] * 3 and values == {"a": (3.0, 5.0), "b": (4.0, 6.0)}


def test_a_table_has_the_median_and_the_spread_of_what_is_compared() -> None:
    alone = Measured("archs", "/s", (1000.0, 3000.0, 12_345.6))
    beside = Measured("step", "s", (2.0, 3.0, 6.0), (1.0, 2.0, 3.0))
    assert beside.ratios == (2.0, 1.5, 2.0)
    assert [line.split() for line in table([alone])] == [
        ["ours", "unit", "spread"],
        ["archs", "3,000", "/s", "1,000", "to", "12,346"],
    ]
    assert table([beside, alone])[1].split() == ["step", "3", "2", "s", "2.000", "1.500", "to", "2.000"]


def test_every_rate_is_measured_in_any_family(capsys: pytest.CaptureFixture[str]) -> None:
    rows = bench_archs("digits/twins", candidates=4000, rounds=1)
    assert len(rows) == 6 and all(row.unit == "/s" and len(row.ours) == 1 and row.ours[0] > 0 for row in rows)
    assert main(["bench", "archs", "digits/twins", "--candidates", "10"]) == 2
    assert "candidates must be at least 4,000" in capsys.readouterr().err
