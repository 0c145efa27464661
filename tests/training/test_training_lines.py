"""The lines of a training."""

from __future__ import annotations

from typing import Any

import pytest

from raynas.progress.reporter import reporter
from raynas.training import progress as shown
from raynas.training.progress import TrainingLines


def epoch(number: int) -> dict[str, Any]:
    return {"epoch": number, "loss": 3.0 - number / 10}


def test_a_training_that_goes_on_shows_its_newest_epoch_and_not_its_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "EVERY_S", 0.0)
    lines: list[str] = []
    told = reporter(lines.append)
    with told.doing("training") as activity:
        of_training = TrainingLines(told, activity, epochs=30)
        rolled_back = {"epoch": 2, "event": "the loss is not finite"}
        of_training.history([epoch(1), epoch(2), rolled_back, epoch(3), epoch(4)])
        of_training.history([epoch(1), epoch(2), rolled_back, epoch(3), epoch(4), epoch(5)])
    assert [line.split("  ")[1] for line in lines if "epoch" in line] == [
        "WARNING the loss is not finite; going on from epoch 2 in another order", "epoch 4/30", "epoch 5/30",
    ]  # fmt: skip
