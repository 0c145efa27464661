"""Evolution against brute force, its declared rates, and the traces of the released script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raynas.costs import cost
from raynas.errors import UserError
from raynas.search import Evolution, RandomSearch
from raynas.search.evolution import released_mutation
from raynas.space import INACTIVE, Space, load_space
from tests.search.search_parts import accuracy, drive, vit


def test_finds_the_optimum_of_a_counted_space(medium: Space) -> None:
    codes = medium.encode(medium.enumerate())
    macs = cost(medium, codes)["macs"]
    high = float(np.quantile(macs, 0.3))
    feasible = [arch for arch, one in zip(medium.enumerate(), macs, strict=True) if one <= high]
    ranked = sorted(feasible, key=accuracy, reverse=True)
    found = []
    for seed in range(5):
        search = Evolution(medium, constraints={"macs": (None, high)}, seed=seed, evaluations=450)
        drive(search)
        found.append(ranked.index(search.best()))  # type: ignore[arg-type]
    assert found.count(0) >= 3
    assert max(found) < 0.01 * len(ranked)


def test_minimises_too(small: Space) -> None:
    search = Evolution(small, objectives={"loss": "min"}, evaluations=90)
    asked = drive(search, lambda arch: {"loss": -accuracy(arch)})
    assert search.best() == max(asked, key=accuracy)


def test_a_cost_can_be_the_objective(medium: Space) -> None:
    search = Evolution(medium, objectives={"params": "min"}, evaluations=400)
    drive(search)
    codes = medium.encode(medium.enumerate())
    assert cost(medium, [search.best()])["params"][0] == cost(medium, codes)["params"].min()  # type: ignore[list-item]


def test_beats_random_search_at_equal_budget() -> None:
    space = load_space("digits/vit")
    wins = 0
    for seed in range(5):
        found = []
        for kind in (Evolution, RandomSearch):
            search: Any = kind(space, constraints={"macs": (None, 2.0e6)}, seed=seed, evaluations=300)
            drive(search)
            found.append(accuracy(search.best()))
        wins += found[0] > found[1]
    assert wins == 5


def test_generations_are_as_released(medium: Space) -> None:
    search = Evolution(load_space("autoformer/small"), constraints={"params": (18e6, 23e6)})
    assert len(drive(search, lambda arch: arch["depth"])) == 1050
    generations = [row.generation for row in search.history]
    assert generations == [g for g in range(21) for _ in range(50)]
    assert search.tally["mutation"]["taken"] == search.tally["crossover"]["taken"] == 20 * 25


def test_the_last_generation_counts(medium: Space) -> None:
    search = Evolution(medium, generations=1, population=10, mutations=5, crossovers=5)
    asked = drive(search, lambda arch: None)
    assert len(asked) == 20
    search = Evolution(medium, generations=1, population=10, mutations=5, crossovers=5)
    number = iter(range(20))
    asked = drive(search, lambda arch: next(number))
    assert search.best() == asked[-1]


def test_budgets_the_first_spent_ends(medium: Space) -> None:
    small: dict[str, Any] = {"population": 10, "mutations": 5, "crossovers": 5}
    assert len(drive(Evolution(medium, generations=3, **small))) == 40
    assert len(drive(Evolution(medium, generations=3, evaluations=25, **small))) == 25
    assert len(drive(Evolution(medium, generations=3, evaluations=99, **small))) == 40
    assert len(drive(Evolution(medium, generations=0, **small))) == 10
    wide = Evolution(medium, generations=1, population=10, mutations=12, crossovers=9)
    assert len(drive(wide)) == 10 + 21


def test_generations_are_counted_where_they_are_short(small: Space, caplog: pytest.LogCaptureFixture) -> None:
    search = Evolution(small, population=60, mutations=30, crossovers=30, generations=1, constraints={"macs": (0, 2e5)})
    drive(search)
    assert {row.generation for row in search.history} == {0, 1}
    assert caplog.messages == ["from generation 1 on there are fewer new archs than wanted (60)"]


def test_parents_are_the_best_of_the_whole_history_in_stable_order(medium: Space) -> None:
    search = Evolution(medium, parents=3, population=10, mutations=5, crossovers=5, generations=5)
    first = search.ask(10)
    search.tell(first, [0.1, 0.9, None, 0.5, 0.5, 0.5, 0.2, float("nan"), 0.1, 0.1])
    second = search.ask(10)
    search.tell(second, [0.5] * 10)
    expected = medium.encode([first[1], first[3], first[4]])  # of equals, the first told
    assert search._best_parents().tolist() == expected.tolist()


def test_mutation_rates_are_the_released_ones_net_of_repeats() -> None:
    """A gene with k choices changes with (k - 1) / k of its rate: global 0.4, in blocks 0.2."""
    space = load_space("autoformer/small")
    rates = released_mutation(space)
    assert rates == {
        "patch_size": 0.4,
        "width": 0.4,
        "depth": 0.4,
        "blocks.*.heads": 0.2,
        "blocks.*.mlp_ratio": 0.2,
    }
    search = Evolution(space)
    parents = space.encode([space.largest()])
    mutants = space.mutate_codes(np.repeat(parents, 20_000, axis=0), np.random.default_rng(0), search.mutation)
    changed = (mutants != parents) & (mutants != INACTIVE)
    for column, dimension in enumerate(space.dimensions):
        acts = mutants[:, column] != INACTIVE
        k = len(dimension.choices)
        expected = rates[dimension.template] * (k - 1) / k
        deviation = (expected * (1 - expected) / acts.sum()) ** 0.5
        assert changed[acts, column].mean() == pytest.approx(expected, abs=4.5 * deviation + 1e-12), dimension.name


def test_crossover_pairs_parents_of_equal_depth_only(medium: Space) -> None:
    search = Evolution(medium, population=50, parents=6, mutations=0, crossovers=40, tries=40, mutation=0.0)
    archs = search.ask(50)
    ranked = sorted(range(50), key=lambda index: archs[index]["depth"] not in (3, 4))
    parents = [archs[index] for index in ranked[:6]]
    search.tell(archs, [float(arch in parents) for arch in archs])
    children = search._crosses(search._best_parents())
    genes = {depth: [p for p in parents if p["depth"] == depth] for depth in (3, 4)}
    assert len(children)
    for child in medium.decode(children):
        alike = genes[child["depth"]]
        assert all(child[name] in {parent[name] for parent in alike} for name in child)
        assert child not in archs


def test_crossing_by_block_keeps_blocks_whole(medium: Space) -> None:
    first, second = medium.smallest(), medium.largest()
    first = medium.arch({**second, **first, "depth": 4})
    parents = medium.encode([first, second])
    search = Evolution(medium, crossovers=40, crossover="block", tries=20)
    for child in medium.decode(search._crosses(parents)):
        for block in range(4):
            taken = (child[f"blocks.{block}.heads"], child[f"blocks.{block}.mlp_ratio"])
            assert taken in ((1, 1.0), (3, 2.0))
    by_gene = Evolution(medium, crossovers=40, crossover="gene", tries=20)._crosses(parents)
    assert any((c["blocks.0.heads"], c["blocks.0.mlp_ratio"]) == (1, 2.0) for c in medium.decode(by_gene))


# The released search class, run with a synthetic objective that rises with the parameters, five seeds each: the least
# and most draws that its mutation and crossover took for their 500 archs, and the share of uniform draws it accepted.
TRACES = {
    ("autoformer/tiny", 5e6, 7e6): ((824, 1373), 0.38),
    ("autoformer/tiny", 5e6, 6e6): ((1434, 1546), 0.10),
    ("autoformer/small", 18e6, 23e6): ((908, 1175), 0.25),
    ("autoformer/base", 52e6, 54e6): ((1419, 1567), 0.13),
}


@pytest.mark.parametrize(("name", "low", "high"), TRACES)
def test_draws_are_as_many_as_the_released_script_takes(name: str, low: float, high: float) -> None:
    space = load_space(name)
    (least, most), share = TRACES[name, low, high]
    params = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))["params"]
    accepted = ((low <= params) & (params <= high)).mean()
    # Each of the five traces drew until 50 were accepted: that is how well the share is known.
    assert accepted == pytest.approx(share, abs=2 * share * ((1 - share) / 250) ** 0.5)
    tried = []
    for seed in range(2):
        noise = np.random.default_rng(seed)
        search = Evolution(space, constraints={"params": (low, high)}, seed=seed)
        while archs := search.ask(50):
            size = cost(space, archs)["params"]
            assert ((low <= size) & (size <= high)).all()
            search.tell(archs, list(72 + 0.2 * (size - low) / (high - low) + 0.01 * noise.standard_normal(len(archs))))
        assert len({row.arch for row in search.history}) == 1050
        assert search.tally["mutation"]["taken"] == 500
        tried.append(search.tally["mutation"]["tried"])
    assert 0.9 * least <= np.mean(tried) <= 1.1 * most


def test_uniform_sampling_spreads_parameters_as_the_reference_does() -> None:
    """Quantiles of 20,000 uniform samples of the released spaces, in millions."""
    reference = {
        "tiny": (5.871, 6.715, 7.632, 8.478, 9.686),
        "small": (15.232, 17.488, 22.006, 26.645, 30.484),
        "base": (46.534, 52.105, 57.135, 62.238, 69.528),
    }
    for name, expected in reference.items():
        space = load_space(f"autoformer/{name}")
        params = cost(space, space.sample_codes(np.random.default_rng(0), 20_000))["params"] / 1e6
        assert np.quantile(params, (0.05, 0.25, 0.5, 0.75, 0.95)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 0}, "population must be an integer of at least 1, not 0"),
        ({"parents": True}, "parents must be an integer"),
        ({"tries": 0}, "tries"),
        ({"mutations": -1}, "mutations"),
        ({"generations": -1}, "generations"),
        ({"mutation": 1.5}, r"mutation probability 'mutation' must be in \[0, 1\], not 1.5"),
        ({"mutation": {"depth": "often", "*": 0.1}}, "'depth'"),
        ({"mutation": {"dept": 0.1, "*": 0.2}}, "did you mean 'depth'"),
        ({"mutation": {"depth": 0.1}}, r"give '\*'"),
        ({"crossover": "genes"}, "by 'gene' or by 'block'"),
        ({"objectives": {"accuracy": "max", "macs": "min"}}, "use NSGA2"),
        ({"objectives": {"accuracy": "up"}}, "'max' or 'min', not 'up'"),
        ({"objectives": {}}, "needs an objective"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Evolution(vit(), **arguments)


def test_vit_resnas_numbers() -> None:
    """500 first, then 150 children of the best 75 in each of 19 rounds: 3,350 archs (its Section 4.3; the release)."""
    space = load_space("autoformer/small")
    options: dict[str, Any] = {"initial": 500, "population": 150, "parents": 75, "mutations": 75, "crossovers": 75}
    search = Evolution(space, {"accuracy": "max"}, mutation=0.3, any_pair=True, generations=19, **options)
    assert len(drive(search, lambda arch: arch["depth"])) == 3350
    assert [row.generation for row in search.history].count(0) == 500


def test_parents_that_keep_different_blocks_are_crossed() -> None:
    """Six blocks that may be dropped: pairs alike are rare, and a child keeps a block only if a parent does."""
    blocks = {"repeat": 6, "kept": [False, True], "heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0]}
    definition = {**vit().to_dict(), "dimensions": {"patch_size": [2], "width": [16, 24, 32], "blocks": blocks}}
    space = Space.from_dict(definition)
    counts = {}
    for any_pair in (False, True):
        search = Evolution(space, parents=20, generations=3, mutations=0, crossovers=40, any_pair=any_pair, seed=1)
        drive(search, lambda arch: arch["width"])
        counts[any_pair] = search.tally["crossover"]["taken"]
    assert counts[True] == 120 > counts[False]
    parents, other = space.sample_codes(np.random.default_rng(0), 2).reshape(2, 1, -1)
    children = space.crossover_codes(parents.repeat(50, 0), other.repeat(50, 0), np.random.default_rng(1))
    for name in (f"blocks.{i}" for i in range(6)):
        kept, heads = space.index(f"{name}.kept"), space.index(f"{name}.heads")
        assert np.isin(children[:, kept], [parents[0, kept], other[0, kept]]).all()
        own = children[children[:, kept] == 1, heads]
        assert np.isin(own, [parents[0, heads], other[0, heads]]).all() and (own >= 0).all()
