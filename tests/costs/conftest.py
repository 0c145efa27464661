"""The toy family of stages, known for as long as a test asks for it."""

from __future__ import annotations

import pytest

from tests.costs import staged
from tests.space.space_parts import add_family


@pytest.fixture
def staged_family(monkeypatch: pytest.MonkeyPatch) -> None:
    add_family(monkeypatch, "staged", staged.STAGED, staged.terms)
