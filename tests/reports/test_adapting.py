"""Lines on adapting: the sample's scores before and after training, and a model that training has spoilt."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from raynas.reports.adapting import adapting_lines, chance_lines
from raynas.reports.sampled import ADAPTED, ORDERED, RANDOM, Sampled


@pytest.mark.parametrize(("after", "told"), [(0.9, False), (0.4, True)])
def test_a_model_that_training_has_spoilt_is_told(monkeypatch: pytest.MonkeyPatch, after: float, told: bool) -> None:
    macs = np.array([2e6, 1e6])
    accuracy = {RANDOM: np.array([0.93, 0.2]), ORDERED: np.array([0.93, 0.3]), ADAPTED: np.array([after, 0.5])}
    monkeypatch.setattr("raynas.reports.adapting.sampled", lambda run: Sampled(macs, accuracy, "taylor"))
    *table, last = adapting_lines(cast(Any, None))
    line = "took the model itself from 93.0% to 40.0%"
    assert (line in last) == told and ("lower recipe.lr" in last) == told
    assert "50.0%, 50.0%" in " ".join([*table, last])


@pytest.mark.parametrize(("accuracy", "told"), [(0.26, False), (0.25, True), (0.0, True)])
def test_a_model_that_knows_no_more_than_chance_is_told(
    monkeypatch: pytest.MonkeyPatch, accuracy: float, told: bool
) -> None:
    found = Sampled(np.array([2e6, 1e6]), {ORDERED: np.array([accuracy, 0.9])}, "taylor")
    monkeypatch.setattr("raynas.reports.adapting.sampled", lambda run: found)
    run: Any = SimpleNamespace(space=SimpleNamespace(classes=4))
    assert any("adapt.head=new" in line for line in chance_lines(run)) == told
