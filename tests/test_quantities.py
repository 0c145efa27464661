"""Values of costs as people read them."""

from __future__ import annotations

import pytest

from raynas.quantities import amount, bounds_text, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12, "12"),
        (999.4, "999.4"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_234_567, "1.23M"),
        (999_999_999, "1G"),
        (5e12, "5T"),
    ],
)
def test_counts_have_three_digits_and_a_letter(value: float, text: str) -> None:
    assert number("macs", value) == text
    assert amount("params", value) == f"{text} parameters"


def test_bounds_are_words() -> None:
    assert bounds_text("macs", (None, 1.8e9)) == "at most 1.8G MACs"
    assert bounds_text("latency", (None, 12.5)) == "at most 12.5 ms" and bounds_text("macs", (None, None)) == ""
    assert bounds_text("params", (5e6, 999_950)) == "5M to 1M parameters"
