"""Progress of trainings of several networks."""

from __future__ import annotations

from raynas.phases.network_training import _States
from raynas.progress.reporter import Activity
from raynas.training.progress import WAITING


def test_no_steps_are_counted_before_their_number_is_known() -> None:
    activity = Activity("retraining", None, "steps", lambda: None)
    states = _States(["winner", "reference"], activity, lambda line: None)
    states.event("winner", {"kind": WAITING, "text": "workers are starting"})
    assert str(activity).startswith("retraining: winner: workers are starting, ")
    states.event("winner", {"kind": "step", "step": 5, "steps": 20, "epoch": 0, "epochs": 2, "loss": 1.0})
    assert activity.counted == "5/40 steps"
