"""NSGA-II against the true front of counted spaces."""

from __future__ import annotations

import numpy as np
import pytest

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search import NSGA2, RandomSearch
from raynas.search.config import Direction
from raynas.search.objectives import non_dominated
from raynas.space import Arch, Space
from tests.search.search_parts import accuracy, drive, front_of, hypervolume, vit

BOTH: dict[str, Direction] = {"accuracy": "max", "macs": "min"}
COSTS_ONLY: dict[str, Direction] = {"macs": "min", "params": "max"}


def test_finds_the_true_front(small: Space) -> None:
    search = NSGA2(small, objectives=BOTH, population=24, evaluations=110)  # of 126
    drive(search)
    assert set(search.best()) == front_of(list(small.enumerate()))  # type: ignore[arg-type]


def test_nearly_finds_the_front_of_a_larger_space_in_a_tenth_of_it(medium: Space) -> None:
    high = float(np.quantile(cost(medium, medium.encode(medium.enumerate()))["macs"], 0.5))
    true = hypervolume(list(front_of(list(medium.enumerate()), high)), high)
    shares = {}
    for kind in (NSGA2, RandomSearch):
        found = []
        for seed in range(3):
            search = kind(medium, objectives=BOTH, constraints={"macs": (None, high)}, seed=seed, evaluations=450)
            drive(search)
            found.append(hypervolume([row.arch for row in search.front()], high) / true)
        shares[kind] = np.mean(found)
    assert shares[NSGA2] > 0.99
    assert shares[RandomSearch] < shares[NSGA2] <= 1


def test_one_objective_finds_the_optimum(medium: Space) -> None:
    search = NSGA2(medium, evaluations=600)
    drive(search)
    ranked = sorted((accuracy(arch) for arch in medium.enumerate()), reverse=True)
    assert accuracy(search.best()) >= ranked[2]  # type: ignore[arg-type]


def test_three_objectives_and_two_constraints(medium: Space) -> None:
    codes = medium.encode(medium.enumerate())
    costs = cost(medium, codes)
    most, least = float(np.quantile(costs["macs"], 0.6)), float(np.quantile(costs["params"], 0.2))
    three: dict[str, Direction] = {"accuracy": "max", "macs": "min", "params": "max"}
    search = NSGA2(medium, three, {"macs": (None, most), "params": (least, None)}, evaluations=200, population=20)
    drive(search)
    front = search.front()
    assert [row.arch for row in front] == search.best()
    for row in front:
        assert row.objectives is not None
        assert row.objectives["accuracy"] == accuracy(row.arch)
        assert row.objectives["macs"] == cost(medium, [row.arch])["macs"][0]
        assert row.objectives["macs"] <= most
        assert row.objectives["params"] >= least


def test_generations(medium: Space) -> None:
    search = NSGA2(medium, objectives=BOTH, generations=4, population=15)
    drive(search)
    assert [row.generation for row in search.history] == [g for g in range(5) for _ in range(15)]
    assert NSGA2(medium).budget == 1050


def test_costs_alone_can_be_the_objectives(medium: Space) -> None:
    search = NSGA2(medium, objectives=COSTS_ONLY, generations=4, population=15)
    drive(search, lambda arch: 0.0)
    assert set(search.history[0].objectives or {}) == {"macs", "params"}


def test_non_dominated_equals_its_definition() -> None:
    rng = np.random.default_rng(0)
    for objectives in (1, 2, 3):
        points = rng.integers(0, 6, size=(80, objectives)).astype(float)  # with many ties and repeats
        expected = [not any(np.all(other <= point) and np.any(other < point) for other in points) for point in points]
        assert non_dominated(points).tolist() == expected


def test_wrong_options_are_named() -> None:
    with pytest.raises(UserError, match=r"crossover_probability must be in \[0, 1\], not 2"):
        NSGA2(vit(), crossover_probability=2)
    with pytest.raises(UserError, match="population"):
        NSGA2(vit(), population=0)


def test_the_population_is_the_best_of_all_that_was_told(medium: Space) -> None:
    search = NSGA2(medium, objectives=BOTH, population=30)
    for _ in range(6):
        archs = search.ask(30)
        search.tell(archs, [None if index % 7 == 0 else accuracy(arch) for index, arch in enumerate(archs)])
        codes, rank, crowding = search._survive()
        population = medium.decode(codes)
        assert (
            len(set(population))
            == len(population)
            == min(30, sum(row.objectives is not None for row in search.history))
        )
        front = {row.arch for row in search.front()}
        first = {arch for arch, one in zip(population, rank, strict=True) if one == 0}
        assert first == front or (first < front and len(first) == 30)
        assert np.isinf(crowding).sum() >= 2  # the ends of the front


def test_tournaments_go_by_rank_then_crowding() -> None:
    search = NSGA2(vit(), population=4)
    rank, crowding = np.array([1, 0, 0, 2]), np.array([9.0, 1.0, 2.0, 9.0])
    winners = np.bincount(search._tournaments(rank, crowding, 40_000), minlength=4) / 40_000
    # The k-th best of four wins against itself and those below it: (2 (4 - k) + 1) / 16.
    assert winners == pytest.approx(np.array([3, 5, 7, 1]) / 16, abs=0.01)


def test_parents_come_from_the_best_of_the_population(medium: Space) -> None:
    """With one parent, no crossing and no mutation there is nobody to descend from but the best so far."""
    search = NSGA2(medium, population=10, parents=1, generations=1, crossover_probability=0, mutation=0.15)
    drive(search)
    best = max((row.arch for row in search.history if row.generation == 0), key=accuracy)
    children = [row.arch for row in search.history if row.generation == 1]

    def distance(arch: Arch) -> int:
        return int((medium.encode([arch]) != medium.encode([best])).sum())

    assert len(children) == 10 and np.mean([distance(arch) for arch in children]) < len(medium.dimensions) / 3
    with pytest.raises(UserError, match="parents must be an integer of at least 1"):
        NSGA2(medium, parents=0)
    with pytest.raises(UserError, match="parents are of the population: give at most 20, not 21"):
        NSGA2(medium, population=20, parents=21)
