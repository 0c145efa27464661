"""NASViT's evolution and AlphaNet's buckets: against the true front of a counted space, and their declared numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search import ParetoEvolution
from raynas.search.config import Direction
from raynas.search.survival import survive
from raynas.space import Arch, Space, load_space
from tests.search.search_parts import accuracy, drive, front_of, vit

BOTH: dict[str, Direction] = {"accuracy": "max", "macs": "min"}
SMALL: dict[str, Any] = {"initial": 30, "parents": 12, "mutations": 12, "crossovers": 12}
STEP = 2e4


def test_finds_the_true_front(small: Space) -> None:
    search = ParetoEvolution(small, BOTH, **SMALL, evaluations=110)  # of 126
    drive(search)
    assert set(search.best()) == front_of(list(small.enumerate()))  # type: ignore[arg-type]


def test_the_numbers_are_the_papers() -> None:
    search = ParetoEvolution(load_space("autoformer/small"), BOTH)
    first = search.ask(2000)
    search.tell(first, [float(arch["depth"]) for arch in first])
    second = search.ask(2000)
    assert (len(first), len(second), search.budget) == (1024, 256, 11_264)
    assert search.tally["mutation"]["taken"] == search.tally["crossover"]["taken"] == 128
    assert len(search._best_parents()) == 128


def test_a_bucket_keeps_its_best_arch_even_if_it_is_beaten(medium: Space) -> None:
    search = ParetoEvolution(medium, BOTH, buckets={"macs": STEP}, **{**SMALL, "parents": None}, generations=4)
    asked = drive(search)
    best: dict[int, Arch] = {}
    for arch in asked:
        key = round(float(cost(medium, [arch])["macs"][0]) / STEP)
        if key not in best or accuracy(arch) > accuracy(best[key]):
            best[key] = arch
    assert set(medium.decode(search._best_parents())) == set(best.values())
    assert not set(best.values()) <= {row.arch for row in search.front()}


def test_parents_are_whole_fronts_first(medium: Space) -> None:
    search = ParetoEvolution(medium, BOTH, **SMALL)
    values = np.random.default_rng(0).integers(0, 9, size=(40, 2)).astype(float)  # with ties and repeats
    chosen = set(search.select(values, 12).tolist())
    assert len(chosen) == 12
    left = set(range(40))
    while not chosen.isdisjoint(left):
        front = {
            i for i in left if not any((values[j] <= values[i]).all() and (values[j] != values[i]).any() for j in left)
        }
        assert front <= chosen or chosen & left < front  # all of it, or as many as there is still room for
        left -= front


def test_peeled_fronts_survive_as_sorted_ones_do(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=(300, 2))
    whole = survive(values, 60, np.random.default_rng(0))
    monkeypatch.setattr("raynas.search.survival._SORTED", 100)
    for one, other in zip(whole, survive(values, 60, np.random.default_rng(0)), strict=True):
        assert sorted(one) == sorted(other)
    assert len(whole[0]) == 60


def test_the_best_by_one_objective_survive_with_their_equals() -> None:
    values = np.random.default_rng(0).integers(0, 900, size=(2500, 1)).astype(float)
    kept, rank, _ = survive(values, 60, np.random.default_rng(0))
    assert sorted(values[kept, 0]) == sorted(values[:, 0])[:60] and len(set(kept)) == 60
    assert [np.sum(rank == each) for each in range(3)] == [np.sum(values == best) for best in np.unique(values)[:3]]


@pytest.mark.parametrize("options", [{}, {"evaluations": 333}, {"buckets": {"macs": 20_000.0}}])
def test_costs_are_searched_without_archs_as_with_them(medium: Space, options: dict[str, Any]) -> None:
    def made() -> ParetoEvolution:
        sizes = {"initial": 200, "parents": 50, "mutations": 20, "crossovers": 20, "generations": 9}
        search = ParetoEvolution(
            medium,
            {"score": "max", "macs": "min"},
            {"params": (None, 12_000)},
            seed=3,
            costs={"score": lambda codes: np.where(codes[:, 1] == 0, np.nan, codes.sum(axis=1))},  # some fail
            **{**sizes, **options},
        )
        return search

    search = made()
    drive(search, lambda arch: {})
    codes, values = made().run_on_costs()
    told = [row for row in search.history if row.objectives is not None]
    assert 0 < len(told) < search.evaluations
    assert medium.decode(codes) == [row.arch for row in told]
    assert values.tolist() == search.objectives.minimised([row.objectives or {} for row in told]).tolist()


def test_a_mutated_gene_changes_and_any_parents_are_crossed(medium: Space) -> None:
    search = ParetoEvolution(medium, BOTH, mutation={"width": 1.0, "*": 0.0}, mutations=5, crossovers=40, initial=10)
    parents = medium.encode([medium.smallest(), medium.largest()])
    mutants = search._mutants(parents)
    widths = medium.values(mutants, "width")
    assert len(mutants) and (widths[medium.values(mutants, "depth") == 1] != 16).all()
    assert (widths[medium.values(mutants, "depth") == 4] != 32).all()
    assert set(medium.values(search._crosses(parents), "depth")) == {1, 4}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"buckets": {"mac": 1e6}}, "'mac' is no objective; the objectives are accuracy, macs"),
        ({"buckets": {"macs": 0}}, "step of macs must be a number above 0"),
        ({"buckets": 1e6}, "buckets are steps of costs"),
        ({"buckets": {"macs": 1e6, "accuracy": 0.1}}, "leave one objective"),
        ({"parents": 0}, "parents must be an integer"),
        ({"initial": 0}, "initial"),
        ({"crossovers": -1}, "crossovers"),
        ({"mutation": {"dept": 0.1, "*": 0.2}}, "did you mean 'depth'"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ParetoEvolution(vit(), BOTH, **arguments)
