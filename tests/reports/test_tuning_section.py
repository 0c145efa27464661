"""The section on a tuning: importances against shares of variance computed by hand."""

from __future__ import annotations

import re
from collections.abc import Callable

import optuna
import pytest
from optuna.distributions import BaseDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import create_trial

from raynas.reports.html import Picture, render
from raynas.reports.tuning import Tuning, importances, tuning_section
from raynas.results.schemas import Row

GRID = [(a / 8, b / 8) for a in range(9) for b in range(9)]


def study_of(*values: Callable[[float, float], float]) -> optuna.Study:
    """A study of a grid of two parameters: the first objective is the larger the better, the second the smaller."""
    study = optuna.create_study(directions=[StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE][: len(values)])
    of: dict[str, BaseDistribution] = {"a": FloatDistribution(0, 1), "b": FloatDistribution(0, 1)}
    for a, b in GRID:
        told = [value(a, b) for value in values]
        study.add_trial(create_trial(params={"a": a, "b": b}, distributions=of, values=told))
    return study


def pictures(study: optuna.Study, *names: str) -> list[str]:
    trial: Row = {
        "name": "0",
        "run": "",
        "state": "finished",
        "values": {},
        "results": {},
        "reason": None,
        "seconds": 1.0,
    }
    objectives = dict(zip(names, ("max", "min"), strict=False))
    section = tuning_section(Tuning(objectives, [trial], study))
    assert section is not None
    return [part.caption.split()[0] for part in section.parts if isinstance(part, Picture)]


def test_importances_are_shares_of_the_variance_of_each_objective() -> None:
    """3 a + b has nine tenths of its variance from a; where a is small, b alone decides, which is far from the best."""
    study = study_of(lambda a, b: 3 * a + b, lambda a, b: a + 2 * b)
    first = importances(study, {"target": lambda trial: trial.values[0]}, study.trials)
    second = importances(study, {"target": lambda trial: trial.values[1]}, study.trials)
    assert list(first) == ["a", "b"] and first["a"] == pytest.approx(0.9, abs=0.03)
    assert list(second) == ["b", "a"] and second["b"] == pytest.approx(0.8, abs=0.03)
    assert sum(first.values()) == pytest.approx(1) == sum(second.values())
    assert first == importances(study, {"target": lambda trial: trial.values[0]}, study.trials)


def test_small_results_keep_their_digits() -> None:
    about: Row = {"name": "0", "run": "", "state": "finished", "values": {}, "reason": None, "seconds": 1.0}
    trials = [{**about, "results": {"loss": loss}} for loss in (3.21e-6, -0.00045, 0.0, 0.25, 123.456)]
    section = tuning_section(Tuning({"loss": "min"}, trials, study_of(lambda a, b: a)))
    cells = re.findall(r"<td[^>]*>\s*([^<]*?)\s*</td>", render("", "", [section]))
    assert {"3.21e-06", "-0.00045", "0.0000", "0.2500", "123.5"} <= set(cells)


def test_results_that_are_all_equal_have_no_importances() -> None:
    assert pictures(study_of(lambda a, b: 0.5), "accuracy") == ["History", "Parallel", "Slices:"]
    assert pictures(study_of(lambda a, b: a), "accuracy")[:2] == ["History", "Importances"]
