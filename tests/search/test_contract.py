"""What every search must do: add a search to SEARCHES and it is held to the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raynas.costs import cost
from raynas.errors import InfeasibleError, UserError
from raynas.search import (
    NSGA2,
    AskTell,
    Evolution,
    OptunaSearch,
    ParetoEvolution,
    PredictorEvolution,
    RandomSearch,
)
from raynas.search.predictors import PREDICTORS
from raynas.space import Space, load_space
from tests.search.search_parts import accuracy, drive, vit

Make = Callable[..., Any]


def _random(space: Space, **arguments: Any) -> RandomSearch:
    return RandomSearch(space, **{"evaluations": 60, **arguments})


def _evolution(space: Space, **arguments: Any) -> Evolution:
    small = {"population": 12, "parents": 4, "mutations": 6, "crossovers": 6}
    return Evolution(space, **{"evaluations": 60, **small, **arguments})


def _nsga2(space: Space, **arguments: Any) -> NSGA2:
    return NSGA2(space, **{"evaluations": 60, "population": 12, **arguments})


def _nsga2_two(space: Space, **arguments: Any) -> NSGA2:
    return _nsga2(space, objectives={"accuracy": "max", "macs": "min"}, **arguments)


def _pareto(space: Space, **arguments: Any) -> ParetoEvolution:
    small = {"initial": 12, "mutations": 6, "crossovers": 6, "buckets": {"macs": 1e5}}
    return ParetoEvolution(
        space, **{"evaluations": 60, "objectives": {"accuracy": "max", "macs": "min"}, **small, **arguments}
    )


def by_neighbours(space: Space, codes: np.ndarray, values: np.ndarray, seed: int) -> Callable[[np.ndarray], np.ndarray]:
    """A predictor that is quick: the mean of the three nearest archs."""
    known = space.one_hot(codes)

    def predict(codes: np.ndarray) -> np.ndarray:
        apart = np.abs(space.one_hot(codes)[:, None] - known[None]).sum(axis=2)
        return values[np.argsort(apart, axis=1, kind="stable")[:, :3]].mean(axis=1)

    return predict


def _predictor(space: Space, **arguments: Any) -> PredictorEvolution:
    evolution = {"initial": 24, "parents": 6, "mutations": 6, "crossovers": 6, "generations": 1}
    small = {"samples": 12, "held_out": 4, "verify": 24, "least_tau": -1, "predictor": by_neighbours}
    both = {"objectives": {"accuracy": "max", "macs": "min"}}
    return PredictorEvolution(space, **{"evaluations": 60, **small, **both, "evolution": evolution, **arguments})


def _optuna(space: Space, **arguments: Any) -> OptunaSearch:
    return OptunaSearch(space, **{"evaluations": 60, "side_by_side": 12, **arguments})


def _optuna_two(space: Space, **arguments: Any) -> OptunaSearch:
    sampler = {"name": "nsgaii", "population_size": 12}
    return _optuna(space, sampler=sampler, objectives={"accuracy": "max", "macs": "min"}, **arguments)


SEARCHES: dict[str, Make] = {
    "random": _random,
    "evolution": _evolution,
    "nsga2": _nsga2,
    "nsga2-two-objectives": _nsga2_two,
    "pareto": _pareto,
    "predictor": _predictor,
    "optuna": _optuna,
    "optuna-nsgaii-two-objectives": _optuna_two,
}


FITTED: dict[str, Make] = {f"predictor-{name}": partial(_predictor, predictor=name) for name in PREDICTORS}
"""With each of our predictors, which take longer to fit."""


@pytest.fixture(params=[*SEARCHES, *(pytest.param(name, marks=pytest.mark.slow) for name in FITTED)])
def make(request: pytest.FixtureRequest) -> Make:
    return {**SEARCHES, **FITTED}[request.param]


def quantiles(space: Space, name: str, *shares: float) -> list[float]:
    codes = space.sample_codes(np.random.default_rng(1), 2000)
    return [float(value) for value in np.quantile(cost(space, codes)[name], shares)]


@lru_cache
def all_macs(space: Space) -> np.ndarray:
    return cost(space, space.encode(space.enumerate()))["macs"]


def test_is_an_ask_tell_object(make: Make, medium: Space) -> None:
    assert isinstance(make(medium), AskTell)


def test_spends_its_budget_exactly_and_repeats_nothing(make: Make, medium: Space) -> None:
    search = make(medium)
    asked = drive(search)
    assert len(asked) == len(set(asked)) == search.evaluations == 60
    assert search.ask(5) == []
    assert search.ended is None
    assert [row.arch for row in search.history] == asked
    assert [row.order for row in search.history] == list(range(60))
    assert all(arch in medium for arch in asked)


@pytest.mark.parametrize("piece", [1, 7, 12])
def test_pieces_change_nothing(make: Make, medium: Space, piece: int) -> None:
    whole, cut = make(medium), make(medium)
    assert drive(whole) == drive(cut, piece=piece)
    assert whole.history == cut.history
    assert whole.best() == cut.best()


def test_seeds_decide(make: Make, medium: Space) -> None:
    assert drive(make(medium, seed=3)) == drive(make(medium, seed=3))
    assert drive(make(medium, seed=3)) != drive(make(medium, seed=4))


def test_global_random_streams_are_neither_used_nor_touched(make: Make, medium: Space) -> None:
    np.random.seed(0)
    first = drive(make(medium))
    before = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    np.random.seed(1)
    assert drive(make(medium)) == first
    np.random.seed(0)
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index, union-attr]


def test_replaying_the_first_part_goes_on_as_before(make: Make, medium: Space) -> None:
    asked = drive(make(medium))
    resumed = make(medium)
    for _ in range(5):  # what a killed run had told
        archs = resumed.ask(6)
        resumed.tell(archs, [accuracy(arch) for arch in archs])
    assert [row.arch for row in resumed.history] + drive(resumed, piece=4) == asked


def test_every_arch_handed_out_meets_every_constraint(make: Make, medium: Space) -> None:
    (high,) = quantiles(medium, "macs", 0.6)
    low, top = quantiles(medium, "params", 0.2, 0.7)
    asked = drive(make(medium, constraints={"macs": (None, high), "params": (low, top)}))
    costs = cost(medium, medium.encode(asked))
    assert len(asked) == 60
    assert (costs["macs"] <= high).all()
    assert ((low <= costs["params"]) & (costs["params"] <= top)).all()


def test_bounds_are_inclusive_and_a_single_rare_arch_is_found(make: Make, medium: Space) -> None:
    arch = medium.largest()  # once in 15,000 random archs
    exact = int(all_macs(medium).max())
    assert drive(make(medium, constraints={"macs": (exact, exact)})) == [arch]


def test_ends_where_a_space_too_large_to_count_has_no_more(
    make: Make, medium: Space, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("raynas.search.candidates.ENUMERABLE", 0)
    low, high = np.quantile(all_macs(medium), (0.02, 0.022))
    feasible = int(((low <= all_macs(medium)) & (all_macs(medium) <= high)).sum())
    search = make(medium, constraints={"macs": (float(low), float(high))})
    asked = drive(search)
    assert 0.9 * feasible <= len(asked) <= feasible < 60
    assert f"is not among the {len(asked)} handed out" in search.ended
    assert search.ended in caplog.text


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), share=st.floats(0.05, 1.0), failing=st.floats(0.0, 1.0))
def test_any_seed_window_and_failure_rate(make: Make, medium: Space, seed: int, share: float, failing: float) -> None:
    (high,) = quantiles(medium, "macs", share)
    search = make(medium, constraints={"macs": (None, high)}, seed=seed)
    fails = np.random.default_rng(seed)
    asked = drive(search, lambda arch: None if fails.random() < failing else accuracy(arch), piece=5)
    feasible = int((all_macs(medium) <= high).sum())
    assert len(set(asked)) == len(asked) == min(60, feasible)
    assert (cost(medium, medium.encode(asked))["macs"] <= high).all()


@pytest.mark.parametrize(
    "failed", [None, math.nan, math.inf, {"accuracy": None}, {"accuracy": 0.99, "status": "failed"}, np.float32("nan")]
)
def test_a_failed_arch_is_recorded_and_never_best(make: Make, medium: Space, failed: Any) -> None:
    search = make(medium)
    archs = search.ask(12)
    search.tell(archs, [failed if index % 3 else accuracy(arch) for index, arch in enumerate(archs)])
    assert [row.objectives is None for row in search.history] == [bool(index % 3) for index in range(12)]
    best = search.best()
    assert set(best if isinstance(best, list) else [best]) <= set(archs[::3])
    assert search.evaluations == 12
    drive(search)  # goes on
    assert search.evaluations == 60


def test_goes_on_where_everything_fails(make: Make, medium: Space) -> None:
    search = make(medium)
    assert len(set(drive(search, lambda arch: None))) == 60
    assert search.front() == []
    with pytest.raises(UserError, match="of 60 archs told, each failed or breaks the limits"):
        search.best()


def test_scores_may_be_numbers_or_rows(make: Make, medium: Space) -> None:
    plain, rows = make(medium), make(medium)
    asked = drive(plain, lambda arch: np.float64(accuracy(arch)))
    row = {"status": "ok", "loss": 1.0}
    assert drive(rows, lambda arch: {**row, "arch": arch.id, "accuracy": accuracy(arch)}) == asked
    assert plain.history == rows.history


def test_a_whole_small_space_is_visited_and_the_search_ends(
    make: Make, small: Space, caplog: pytest.LogCaptureFixture
) -> None:
    search = make(small, evaluations=1000)
    with caplog.at_level(logging.WARNING, "raynas.search"):
        asked = drive(search)
    assert sorted(arch.id for arch in asked) == sorted(arch.id for arch in small.enumerate())
    assert search.ended == "all 126 archs that meet the constraints have been handed out"
    assert search.ended in caplog.text
    assert search.ask(1) == []
    best = max(small.enumerate(), key=accuracy)
    assert best in search.best() if isinstance(search.best(), list) else best == search.best()


def test_a_space_of_one_arch(make: Make, small: Space) -> None:
    only = small.fix(small.largest())
    search = make(only)
    asked = drive(search)
    assert asked == [only.largest()]
    assert search.best() in (asked, asked[0])


def test_an_impossible_window_is_refused_at_once_with_the_span(make: Make) -> None:
    space = load_space("autoformer/tiny")
    with pytest.raises(InfeasibleError, match="params"):
        make(space, constraints={"params": (1e9, 2e9)})
    with pytest.raises(InfeasibleError, match="params"):  # between two archs of a small space
        make(vit(), constraints={"params": (10_000.5, 10_000.6)})


def test_a_generation_waits_for_its_scores(make: Make, medium: Space) -> None:
    search = make(medium)
    first = search.ask(12)
    if not search.learns:
        assert set(search.ask(12)).isdisjoint(first)
        return
    with pytest.raises(UserError, match="12 archs of this generation have no score yet"):
        search.ask(1)
    search.tell(first[:5], [0.5] * 5)
    with pytest.raises(UserError, match="7 archs"):
        search.ask(1)
    search.tell(first[5:], [0.5] * 7)
    assert len(search.ask(12)) == 12


def test_nothing_more_comes_once_the_budget_is_handed_out(make: Make, medium: Space) -> None:
    search = make(medium, evaluations=8)
    assert len(search.ask(100)) == 8
    assert search.ask(100) == []  # though no score is told


def test_tells_that_do_not_fit_are_refused_and_change_nothing(make: Make, medium: Space) -> None:
    search = make(medium)
    archs = search.ask(4)
    with pytest.raises(UserError, match="4 archs and 3 scores"):
        search.tell(archs, [0.1, 0.2, 0.3])
    with pytest.raises(UserError, match="in the order"):
        search.tell(archs[::-1], [0.1, 0.2, 0.3, 0.4])
    stranger = next(arch for arch in medium.enumerate() if arch not in archs)
    with pytest.raises(UserError, match=f"told arch {stranger.id}, but the next .* is {archs[0].id}"):
        search.tell([stranger], [0.5])
    with pytest.raises(UserError, match="5 archs, but only 4"):
        search.tell([*archs, stranger], [0.5] * 5)
    with pytest.raises(UserError, match=r"objective 'accuracy'.*'acc'"):
        search.tell(archs, [0.1, 0.2, 0.3, {"acc": 0.4}])
    with pytest.raises(UserError, match="must be a number"):
        search.tell(archs, [0.1, 0.2, 0.3, "high"])
    for wrong in (True, np.True_):
        with pytest.raises(UserError, match=r"must be a number or None, not (np\.)?True"):
            search.tell(archs, [0.1, 0.2, 0.3, wrong])
    for far in (1e308, -1e31):
        with pytest.raises(UserError, match=r"must be at most 1e\+30, not"):
            search.tell(archs, [0.1, 0.2, 0.3, far])
    with pytest.raises(UserError, match="must be a number"):
        search.tell(archs, [0.1, 0.2, 0.3, 10**400])
    assert search.evaluations == 0
    search.tell(archs[:3], [0.1, 0.2, 0.3])
    with pytest.raises(UserError, match="only 1 asked"):
        search.tell(archs[:3], [0.1, 0.2, 0.3])  # twice
    assert search.evaluations == 3
    search.tell([], [])
    search.tell(archs[3:], [0.4])
    assert search.evaluations == 4


def test_asking_for_nothing_is_an_error(make: Make, medium: Space) -> None:
    with pytest.raises(UserError, match="at least 1"):
        make(medium).ask(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"evaluations": 0}, "evaluations must be an integer of at least 1, not 0"),
        ({"evaluations": 2.5}, "evaluations must be an integer"),
        ({"constraints": {"mac": (None, 1.0)}}, "macs"),
    ],
)
def test_wrong_arguments_are_named(make: Make, medium: Space, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(medium, **arguments)
