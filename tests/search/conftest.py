"""Small spaces that can be counted through."""

from __future__ import annotations

import pytest

from raynas.space import Space
from tests.search.search_parts import vit


@pytest.fixture(scope="session")
def small() -> Space:
    """126 archs: 3 widths x (6 + 36)."""
    return vit()


@pytest.fixture(scope="session")
def medium() -> Space:
    """4,662 archs: 3 widths x (6 + 36 + 216 + 1,296)."""
    return vit(depth=[1, 2, 3, 4])
