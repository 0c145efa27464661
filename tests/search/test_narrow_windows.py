"""Searches under bounds that one arch in hundreds meets, or none."""

from __future__ import annotations

import numpy as np
import pytest

from raynas.costs import Constraints, cost
from raynas.errors import InfeasibleError
from raynas.search import NSGA2, Evolution, RandomSearch
from raynas.space import Arch, load_space
from tests.search.search_parts import drive, vit

SPACE = load_space("vitas/v1")
WINDOW = {"macs": (7.17e8, 7.195e8), "params": (None, 5.5e6)}
WEIGHTS = np.random.default_rng(9).normal(size=sum(len(dimension.choices) for dimension in SPACE.dimensions))


def accuracy(arch: Arch) -> float:
    """A made-up accuracy to which every choice adds its share."""
    return float(SPACE.one_hot(SPACE.encode([arch]))[0] @ WEIGHTS)


@pytest.mark.parametrize("kind", [RandomSearch, Evolution, NSGA2])
def test_every_arch_is_inside_and_the_same_seed_the_same_search(kind: type) -> None:
    constraints = Constraints(SPACE, WINDOW)
    assert constraints.feasible(SPACE.sample_codes(np.random.default_rng(0), 10_000)).mean() < 0.002
    first, second = (drive(kind(SPACE, constraints=WINDOW, seed=1, evaluations=75), accuracy) for _ in range(2))
    assert first == second and len(set(first)) == 75
    assert constraints.feasible(SPACE.encode(first)).all()


def test_evolution_gets_its_mutants_and_evolves() -> None:
    """Of 250 mutants one may be inside: the rest are drawn out of the window."""
    search = Evolution(SPACE, constraints=WINDOW, seed=0, evaluations=150)
    scores = [accuracy(arch) for arch in drive(search, accuracy)]
    assert search.tally["mutation"]["taken"] == 50 and search.tally["mutation"]["infeasible"] > 450
    random = [accuracy(arch) for arch in drive(RandomSearch(SPACE, constraints=WINDOW, evaluations=150), accuracy)]
    assert np.mean(scores[100:]) > np.mean(random) + 5 * np.std(random) / np.sqrt(50)


def test_an_empty_window_is_refused_at_once() -> None:
    space = vit()
    macs = np.unique(cost(space, space.encode(space.enumerate()))["macs"])
    widest = np.diff(macs).argmax()
    below, above = (int(each) for each in macs[widest : widest + 2])
    for kind in (RandomSearch, Evolution, NSGA2):
        with pytest.raises(InfeasibleError, match=rf"no arch has macs in .*: the nearest have {below} and {above}"):
            kind(space, constraints={"macs": (below + 1, above - 1)})
