"""The toy family of stages, known for as long as a test asks for it."""

from __future__ import annotations

import sys

import pytest

from raynas.space.families import FAMILIES
from tests.costs import staged


@pytest.fixture
def staged_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "staged", staged.STAGED)
    monkeypatch.setitem(sys.modules, "raynas.nets.staged.cost", staged)
