"""Samplers by name: what is refused, and what each of them stands."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna._transform import _SearchSpaceTransform
from optuna.samplers import BaseSampler, CmaEsSampler, RandomSampler
from optuna.study import Study
from optuna.trial import Trial, TrialState

from raynas.errors import UserError
from raynas.search.optuna_samplers import SAMPLERS, build_sampler, check_sampler, study_in_memory
from raynas.search.replayed_samplers import GridSampler

GRID: list[dict[str, Any]] = [
    {"x": x, "n": n, "kind": kind, **({"extra": extra} if kind == "a" else {})}
    for x in (0.0, 0.5)
    for n in (1, 10)
    for kind in "abc"
    for extra in ((0.0, 1.0) if kind == "a" else (None,))
]
SMALL: dict[str, dict[str, Any]] = {
    "tpe": {"n_startup_trials": 4},
    "gp": {"n_startup_trials": 4},
    "nsgaii": {"population_size": 4},
    "nsgaiii": {"population_size": 4},
}
"""Options with which a sampler learns from a few trials."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep the Gaussian process to one thread: its matrices are small, and the machine is shared."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ask(study: Study, name: str, seed: int = 3, conditional: bool = True) -> Trial:
    """Ask for a trial of two numbers, a choice, and a number that only one of the choices has."""
    number = len(study.get_trials(deepcopy=False))
    study.sampler = build_sampler(name, SMALL.get(name), seed, number, grid=GRID)
    trial = study.ask()
    trial.suggest_float("x", 0, 1)
    trial.suggest_int("n", 1, 10)
    if trial.suggest_categorical("kind", ["a", "b", "c"]) == "a" and conditional:
        trial.suggest_float("extra", 0, 1)
    return trial


def value(trial: Trial) -> float:
    values = trial.params
    return float((values["x"] - 0.3) ** 2 + values["n"] / 10 + "cab".index(values["kind"]) + values.get("extra", 0.0))


def drive(study: Study, name: str, trials: int, at_a_time: int = 1, conditional: bool = True) -> list[dict[str, Any]]:
    """Run trials that all succeed; the values of all trials of the study in the order asked."""
    while trials > 0:
        asked = [ask(study, name, conditional=conditional) for _ in range(min(at_a_time, trials))]
        for trial in asked:
            study.tell(trial, value(trial))
        trials -= len(asked)
    return [trial.params for trial in study.get_trials(deepcopy=False)]


def tell_oddly(study: Study, trial: Trial, outcome: str) -> None:
    """End a trial in one of the ways in which trials end."""
    trial.set_constraint("size", 1.0 if outcome == "infeasible" else -1.0)
    if outcome.startswith("pruned"):
        trial.report(math.nan if outcome == "pruned at NaN" else value(trial), 1)
        study.tell(trial, state=TrialState.PRUNED)
    elif outcome in ("failed", "NaN"):  # a result of NaN is told as a failure
        study.tell(trial, state=TrialState.FAIL)
    else:
        study.tell(trial, math.inf if outcome == "infinite" else value(trial))


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


@pytest.mark.filterwarnings("ignore:Constraints have been set")  # by CMA-ES, which does not use them
@pytest.mark.parametrize("name", SAMPLERS)
def test_goes_on_after_any_outcome(name: str) -> None:
    study = study_in_memory()
    outcomes = ["ok", "failed", "infeasible", "pruned", "NaN", "ok", "pruned at NaN", "infinite"]
    for _, outcome in zip(range(len(GRID)), cycle(outcomes), strict=False):
        tell_oddly(study, ask(study, name), outcome)
    trials = study.get_trials(deepcopy=False)
    assert len(trials) == len(GRID)
    assert all(("extra" in trial.params) == (trial.params["kind"] == "a") for trial in trials)


@pytest.mark.parametrize("name", SAMPLERS)
def test_goes_on_where_every_trial_fails(name: str) -> None:
    study = study_in_memory()
    for _ in range(len(GRID)):
        study.tell(ask(study, name), state=TrialState.FAIL)
    assert len({str(trial.params) for trial in study.get_trials(deepcopy=False)}) == len(GRID)


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "grid", "random"])
def test_trials_side_by_side_differ(name: str) -> None:
    asked = drive(study_in_memory(), name, 16, at_a_time=4)
    assert len({str(values) for values in asked}) == 16


@pytest.mark.parametrize("name", [name for name in SAMPLERS if not SAMPLERS[name].learns])
def test_number_of_workers_changes_nothing_where_results_do_not_count(name: str) -> None:
    conditional = name != "qmc"  # one sequence for the parameters of the first trials, which conditions change
    one, three, all_at_once = (
        drive(study_in_memory(), name, 16, at_a_time, conditional=conditional) for at_a_time in (1, 3, 16)
    )
    assert one == three == all_at_once


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "gp" else []) for name in SAMPLERS]
)
def test_a_study_goes_on_as_if_it_had_never_stopped(name: str, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    whole = drive(study_in_memory(), name, 14)
    storage = f"sqlite:///{tmp_path}/study.db"
    drive(optuna.create_study(storage=storage, study_name="study"), name, 8)
    assert drive(optuna.load_study(storage=storage, study_name="study"), name, 6) == whole


def test_a_grid_has_each_combination_once_and_then_ends() -> None:
    study = study_in_memory()
    asked = drive(study, "grid", len(GRID), at_a_time=3)
    assert sorted(map(str, asked)) == sorted(map(str, GRID)) and asked != GRID
    assert isinstance(study.sampler, GridSampler) and study.sampler.left(study) == 0
    with pytest.raises(ValueError, match="all 16 combinations of the grid have been tried"):
        ask(study, "grid")


def test_a_grid_is_not_moved_by_trials_from_elsewhere() -> None:
    study, plain = study_in_memory(), study_in_memory()
    study.add_trial(optuna.create_trial(value=1.0))
    study.enqueue_trial({"x": 0.1, "n": 2, "kind": "b"})
    assert drive(study, "grid", 5)[2:] == drive(plain, "grid", 4)


def test_replayed_cma_es_has_the_distribution_of_optunas_own() -> None:
    study = study_in_memory()
    for trial in range(39):  # the first is no part of a generation, and the last begins the seventh one of 6
        study.sampler = CmaEsSampler(seed=trial, independent_sampler=RandomSampler(trial))
        asked = study.ask()
        x, y = asked.suggest_float("x", -5, 5), asked.suggest_float("y", -5, 5)
        study.tell(asked, (x - 1) ** 2 + 3 * y**2)
    trials = study.get_trials(deepcopy=False)
    theirs: Any = CmaEsSampler()._restore_optimizer(trials)
    replayed: Any = build_sampler("cmaes")
    assert replayed._restore_optimizer(trials) is None
    ours = replayed._init_optimizer(_SearchSpaceTransform(trials[0].distributions, transform_0_1=True), study.direction)
    assert ours.generation == theirs.generation == 6
    assert ours.mean == pytest.approx(theirs.mean) and pytest.approx(theirs._C) == ours._C
    assert ours._sigma == pytest.approx(theirs._sigma) and ours._sigma < 1 / 6


def test_nothing_in_a_study_is_unpickled(tmp_path: Path) -> None:
    study = study_in_memory()
    drive(study, "cmaes", 8)
    marker = tmp_path / "unpickled"
    harm = pickle.dumps(_Harm(str(marker))).hex()
    study.add_trial(
        optuna.create_trial(
            value=0.0,
            params=study.best_trial.params,
            distributions=study.best_trial.distributions,
            system_attrs={"cma:optimizer:0": harm, "cma:generation": 0},
        )
    )
    drive(study, "cmaes", 2)
    assert not marker.exists()
    pickle.loads(bytes.fromhex(harm))  # it would have harmed
    assert marker.exists()


class _Harm:
    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")
