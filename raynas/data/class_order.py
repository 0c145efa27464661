"""The order of class names, which is the order of the labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def in_order(names: Iterable[str], order: str | None) -> list[str]:
    """Sort class names in `natural` order, or else in plain order, character by character."""
    plain = sorted(names)
    return sorted(plain, key=_natural) if order == "natural" else plain


def _natural(name: str) -> list[str | int]:
    """Return the sort key of timm's order: numbers by value, letters in lower case."""
    return [int(part) if k % 2 else part for k, part in enumerate(re.split(r"(\d+)", name.lower()))]


def order_of(names: Sequence[str]) -> str:
    """Return the order of class names: `plain`, `natural`, `any` (if both are the same) or `other`."""
    plain, natural = (list(names) == in_order(names, order) for order in ("plain", "natural"))
    return {(True, True): "any", (True, False): "plain", (False, True): "natural"}.get((plain, natural), "other")
