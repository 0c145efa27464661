"""Rows of trials, when no more begin, and lists of trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raynas.cluster.connection import unless_set
from raynas.outer.course import Course
from raynas.outer.evolution.trials import METRIC, Suggested
from raynas.outer.experiment import _IN_OUR_HANDS
from raynas.outer.trials import Listed, Proposed, State, Stop, Trial, read_trials, seconds_spent, write_trial
from raynas.outer.tune_parts import Stopping
from raynas.progress.reporter import Activity, reporter, silent
from raynas.runs.run import Run


def trial(number: int, loss: float | None = None, **changes: Any) -> Trial:
    state: State = "failed" if loss is None else "finished"
    results = {} if loss is None else {"loss": loss}
    return replace(Trial(number, f"t{number}", {"x": number}, f"trials/t{number}", state, results), **changes)


@pytest.mark.parametrize(
    ("rule", "losses", "reached"),
    [
        ({"trials": 3}, [1.0, None], None),
        ({"trials": 3}, [1.0, None, 2.0], "all 3 trials have begun"),
        ({"target": 0.5}, [1.0, 0.6], None),
        ({"target": 0.5}, [1.0, 0.5], "loss has reached its target: 0.5 in trial t1"),
        ({"target": 0.8, "better": "max"}, [0.9], "loss has reached its target: 0.9 in trial t0"),
        ({"patience": 2}, [0.3, 0.5], None),
        ({"patience": 2}, [0.3, 0.5, None], "no better loss than 0.3 of trial t0 in 2 trials"),
        ({"patience": 2}, [0.3, 0.5, 0.2], None),
        ({"patience": 2}, [None, None, None], None),
        ({"seconds": 100.0}, [1.0], None),
        ({"seconds": 10.0}, [1.0], "10 s are over"),
    ],
)
def test_stop_rules(rule: dict[str, Any], losses: list[float | None], reached: str | None) -> None:
    trials = [trial(number, loss) for number, loss in enumerate(losses)]
    assert Stop(**{"objective": "loss", "better": "min", **rule}).reached(trials, 50.0) == reached


def test_the_newest_row_of_a_number_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, create=True)
    for row in (trial(1, 0.5, state="running", results={}), trial(0, 0.25), trial(1, 0.5), trial(0, attempt=2)):
        write_trial(run, row)
    assert read_trials(run) == [trial(0, attempt=2), trial(1, 0.5)]
    assert 0 <= seconds_spent(run) < 5


def test_listed_trials_are_proposed_until_they_have_finished() -> None:
    listed = [Proposed(number, f"t{number}", {}, "") for number in range(4)]
    proposer = Listed(listed)
    for known in (trial(0, 0.5), trial(1), trial(2, state="running")):
        proposer.tell(known)
    assert proposer.ask() == listed[1]  # which failed under an earlier command
    proposer.tell(trial(1))
    assert proposer.ask() == listed[3] and proposer.ask() is None


def test_failed_suggestions_are_tried_again_by_the_next_command(tmp_path: Path) -> None:
    run, values = Run(tmp_path, create=True), {"recipe.seed": [0, 1, 2, 3]}
    first = Suggested(run, values, 2, seed=0)
    proposed = [asked for _ in range(2) if isinstance(asked := first.ask(), Proposed)]
    assert len(proposed) == 2 and first.ask() is None
    assert all(each.run == f"trials/recipe.seed={each.values['recipe.seed']}" for each in proposed)
    ended = [
        Trial(**vars(proposed[0]), state="finished", results={METRIC: 0.5}),
        Trial(**vars(proposed[1]), state="failed", reason="it did"),
    ]
    second = Suggested(run, values, 3, seed=0)
    for each in ended:
        second.tell(each)
    again = second.ask()
    assert again == ended[1]
    second.tell(replace(ended[1], state="finished", results={METRIC: 0.25}))
    third = second.ask()
    assert isinstance(third, Proposed) and third.number == 2 and second.ask() is None


def test_trials_that_cannot_run_are_waited_for_as_long_as_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lack = [0.0], ["1 GPU (0 of the cluster's 0 are free)"]
    monkeypatch.setattr("raynas.outer.course.time.monotonic", lambda: now[0])
    monkeypatch.setattr("raynas.outer.course.describe_shortage", lambda needs: lack[0] or None)
    course = Course(Run(tmp_path, create=True), Listed([Proposed(0, "t0", {}, "")]), Stop(), reporter(silent))
    course.limit = lambda: 1
    shown = Activity("trials", None, "", lambda: None)

    def look(seconds: float) -> str | None:
        now[0] += seconds
        course.show(shown, {"GPU": 1}, lambda trial: None)
        return course.lack

    assert look(4000.0) is None  # no trial has been proposed
    course.suggest("first")
    course.at_work = True
    assert look(4000.0) is None and "at most" not in shown.detail  # a trial runs, and more are waited for
    course.at_work = False
    assert look(1700.0) is None and shown.detail.endswith("are free); for 30 min at most")
    lack[0] = ""  # a node came
    assert look(10.0) is None
    lack[0] = "1 GPU"
    assert look(1800.0) is None and not Stopping(course).stop_all()
    assert look(1.0) == "1 GPU" and Stopping(course).stop_all()


def test_the_users_own_settings_of_tune_count(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _IN_OUR_HANDS:
        monkeypatch.delenv(name, raising=False)
    assert unless_set(_IN_OUR_HANDS) == {"TUNE_DISABLE_SIGINT_HANDLER": "1", "RAY_AIR_NEW_OUTPUT": "0"}
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")
    assert unless_set(_IN_OUR_HANDS)["RAY_AIR_NEW_OUTPUT"] == "1"
