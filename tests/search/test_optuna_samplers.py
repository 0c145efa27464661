"""Samplers by name: what is refused, and in which words."""

from __future__ import annotations

from typing import Any

import pytest
from optuna.samplers import BaseSampler, RandomSampler

from raynas.errors import UserError
from raynas.search.optuna_samplers import SAMPLERS, build_sampler, check_sampler


class Seedless(RandomSampler):
    """A sampler of a user's own that takes no seed."""

    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_name_makes_a_sampler_of_its_own_for_each_trial(name: str) -> None:
    one, other = (build_sampler(name, seed=1, trial=trial) for trial in (0, 1))
    assert isinstance(one, BaseSampler) and one is not other
    assert check_sampler(name) == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tpee", {}, "unknown sampler 'tpee' .did you mean 'tpe'.*'module:Class'"),
        ("tpe", {"n_startup": 3}, "n_startup: unknown key 'n_startup' .did you mean 'n_startup_trials'"),
        ("tpe", {"seed": 3}, "unknown key 'seed'"),
        ("tpe", {"n_startup_trials": -1}, "n_startup_trials: Input should be greater than or equal to 0, found -1"),
        ("tpe", {"n_startup_trials": "few"}, "n_startup_trials: .*found 'few'"),
        ("tpe", {"group": True, "multivariate": False}, "``group`` option can only be enabled when"),
        ("cmaes", {"lr_adapt": True, "with_margin": True}, "sampler cmaes: It is prohibited"),
        ("nsgaii", {"population_size": 1}, "population_size: Input should be greater than or equal to 2"),
        ("qmc", {"qmc_type": "sob"}, "qmc_type: Input should be 'sobol' or 'halton', found 'sob'"),
        ("random", {"n": 1}, "unknown key 'n'"),
        ("no_such_module:Sampler", {}, "cannot be imported"),
        ("optuna.samplers:NoSuchSampler", {}, "cannot be imported"),
        ("optuna.samplers:TPESampler", {"gama": 1}, "has no option 'gama' .did you mean 'gamma'"),
        ("pathlib:Path", {}, "must make a sampler of Optuna .BaseSampler.; it made a PosixPath"),
    ],
)
def test_mistakes_are_told_in_one_line(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        build_sampler(name, options)
    assert "\n" not in str(caught.value)


def test_too_many_objectives() -> None:
    with pytest.raises(UserError, match="sampler cmaes has one objective, not 2: take tpe, gp, nsgaii or nsgaiii"):
        check_sampler("cmaes", objectives=2)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raynas.search.optuna_samplers.find_spec", lambda name: None)
    with pytest.raises(UserError, match="sampler cmaes needs the package cmaes: pip install cmaes"):
        check_sampler("cmaes")
    check_sampler("tpe")


def test_a_sampler_of_ones_own_gets_a_seed_if_it_takes_one() -> None:
    first, again, other = (build_sampler("optuna.samplers:RandomSampler", seed=3, trial=trial) for trial in (5, 5, 6))
    draws = [sampler._rng.rng.random() for sampler in (first, again, other)]  # type: ignore[attr-defined]
    assert draws[0] == draws[1] != draws[2]
    own = build_sampler("tests.search.test_optuna_samplers:Seedless", {"scale": 2.0})
    assert type(own).__name__ == "Seedless" and vars(own)["scale"] == 2.0
