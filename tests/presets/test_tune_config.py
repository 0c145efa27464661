"""Settings of tuning: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import FloatDistribution

from raynas.config import validate
from raynas.documents import Document
from raynas.errors import ConfigError
from raynas.presets.preset import override
from raynas.presets.tune import TuneConfig, conditions, in_order
from tests.small_run import PRESET

X = {"low": 0.1, "high": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"params": {}}, "at least 1 item"),
        ({"params": {"x": {"low": 0.1}}}, "params.x: give low and high, or choices"),
        ({"params": {"x": {"low": 1, "high": 0.5}}}, "params.x: low 1 is above high 0.5"),
        ({"params": {"x": {"low": 0, "high": 1.0, "log": True}}}, "params.x: log needs a low above 0, not 0"),
        ({"params": {"x": {**X, "log": True, "step": 0.1}}}, "log and step exclude each other"),
        ({"params": {"x": {"low": 1, "high": 4, "step": 0.5}}}, "whole between whole numbers, not 0.5"),
        ({"params": {"x": {"low": 0.8, "high": 0.95, "step": 0.1}}}, "high 0.95 is not .*: give 0.9, or"),
        ({"params": {"x": {**X, "choices": [1]}}}, "choices stand alone"),
        ({"params": {"x": {"choices": []}}}, "params.x.choices: expected at least 1"),
        ({"params": {"x": {"choices": [1, 2, 1]}}}, "choices: 1 is there twice"),
        ({"params": {"x": {"choices": [2, 1, True]}}}, "choices: True is there twice, or equals another"),
        ({"params": {"x": {"choices": [["a"], '["a"]']}}}, "is there twice, or equals another"),
        ({"params": {"x": {"choices": [str, int]}}}, "choices: give numbers, text, true, false, null, or lists"),
        ({"params": {"x": {**X, "when": {"y": []}}, "y": {"choices": [1, 2]}}}, "x: when: y has no values"),
        (
            {
                "params": {
                    "x": {**X, "when": {"z": [1], "y": [3]}},
                    "y": {"choices": [3, 4], "when": {"z": [2]}},
                    "z": {"choices": [1, 2]},
                }
            },
            "x: when: these conditions exclude each other",
        ),
        ({"params": {"x": [1, 2]}}, 'params.x: give {"low": 1e-4, .* or {"choices": .1, 2.}, found .1, 2.'),
        ({"params": {"x": FloatDistribution(0.1, 1.0)}}, 'params.x: give {"low": 1e-4, "high"'),
        ({"params": {"x": {"lwo": 1, "high": 2}}}, "unknown key 'lwo' .did you mean 'low'"),
        ({"params": {"x": {**X, "when": {"y": [1]}}}}, "no other parameter 'y'"),
        ({"params": {"x": {**X, "when": {"x": [1]}}}}, "x: when: it depends on itself"),
        ({"params": {"x": {**X, "when": {"y": ["c"]}}, "y": {"choices": ["a", "b"]}}}, "y is never 'c'"),
        ({"params": {"x": {**X, "when": {"y": [1]}}, "y": {"low": 1, "high": 2, "when": {"x": [0.5]}}}}, "in a circle"),
        ({"objectives": {"searched": "most"}}, "objectives.searched"),
        ({"objectives": {"a": "max", "b": "min"}, "pruner": "asha"}, "pruner: a study of 2 objectives has none"),
        ({"objectives": {"a": "max", "b": "min"}, "target": 0.5}, "target: it looks at one objective"),
        ({"trials": 0}, "trials"),
    ],
)
def test_wrong_settings_are_refused_in_a_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        validate(TuneConfig, Document({"params": {"x": X}, **settings}, "tune"))
    assert "\n" not in str(raised.value)


def test_settings_survive_a_preset_and_its_changes() -> None:
    params = {"recipe.lr": {**X, "log": True}, "fix.depth": {"choices": [3, 4]}, "space": {"choices": ["digits/vit"]}}
    preset = override(PRESET, {"tune": {"params": params, "sampler": {"name": "gp", "n_startup_trials": 3}}})
    changed = override(preset, {"tune.trials": 5})
    assert changed.tune is not None and preset.tune is not None and changed.tune.trials == 5
    assert changed.tune.params == preset.tune.params and changed.tune.sampler.options == {"n_startup_trials": 3}


def test_a_parameter_comes_after_those_that_it_depends_on() -> None:
    params = {"x": {**X, "when": {"y": [1]}}, "z": X, "y": {"choices": [1, 2], "when": {"z": [0.1]}}}
    assert in_order(validate(TuneConfig, Document({"params": params}, "tune")).params) == ["z", "y", "x"]


def test_no_pruner_may_be_given_as_none() -> None:
    assert validate(TuneConfig, Document({"params": {"x": X}, "pruner": None}, "tune")).pruner.name == "none"


def test_choices_are_as_the_tables_hold_them() -> None:
    """So that a trial gets the same values when it is begun again, whatever its first attempt got them from."""
    given = {"choices": [(32,), (64, 64)]}
    config = TuneConfig.model_validate({"params": {"x": given, "y": {**X, "when": {"x": [(32,)]}}}})
    assert config.params["x"].choices == [[32], [64, 64]] and config.params["y"].when == {"x": [[32]]}


def test_conditions_are_those_of_the_conditions_too() -> None:
    params = {
        "x": {**X, "when": {"y": [3], "z": [1, 2]}},
        "y": {"choices": [3, 4], "when": {"z": [2, 5]}},
        "z": {"choices": [1, 2, 5]},
    }
    assert conditions(TuneConfig.model_validate({"params": params}).params, "x") == {"z": [2], "y": [3]}
