"""Parts by name, bound to their options: every mistake is one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from raynas.errors import ConfigError
from raynas.user_code import bind_part


def scaled(value: int, *, by: int, plus: int = 0) -> int:
    return value * by + plus


def anything(*values: Any, **options: Any) -> tuple[Any, ...]:
    return (*values, *options.items())


PARTS: dict[str, Callable[..., Any]] = {"scaled": scaled, "anything": anything}


def test_options_are_bound() -> None:
    assert bind_part("scaled", {"by": 3, "plus": 1}, PARTS, "part", given=1)(5) == 16
    assert bind_part("anything", {"x": 1}, PARTS, "part", given=2)(5, 6) == (5, 6, ("x", 1))
    assert bind_part("fractions:Fraction", {"denominator": 3}, PARTS, "part", given=1)(6) == 2


@pytest.mark.parametrize(
    ("name", "options", "given", "message"),
    [
        ("scaled", {"bye": 3}, 1, r"part 'scaled' has no option 'bye' \(did you mean 'by'\?\)"),
        ("scaled", {"value": 3}, 1, r"part 'scaled' has no option 'value' \(known: by, plus, each\)"),
        ("scaled", {}, 1, "part 'scaled' needs the option 'by'"),
        ("scaled", {"by": 3}, 2, "part 'scaled' takes 1 arguments by position, and is called with 2"),
        ("builtins:dict", {}, 0, "part 'builtins:dict' is a builtin that says nothing of its arguments"),
        ("math:pi", {}, 0, "part 'math:pi' is not callable: it is the number 3.14"),
        ("scale", {}, 1, r"unknown part 'scale' \(did you mean 'scaled'\?\); your own: 'module:object'"),
    ],
)
def test_mistakes(name: str, options: dict[str, Any], given: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bind_part(name, options, PARTS, "part", given, also=("each",))
