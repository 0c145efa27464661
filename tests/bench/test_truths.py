"""The truth tables: answers beside the raw Parquet files, and a training made again."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.ensemble import RandomForestRegressor

import raynas
from raynas.bench.truths import FOLDER, Truth
from raynas.errors import UserError
from raynas.phases.rank import accuracies, archs_of, read_truth
from raynas.search import run_search

EVIDENCE = Path(__file__).parents[2] / "docs/evidence"

each_family = pytest.mark.parametrize("family", sorted(path.stem for path in FOLDER.glob("*.parquet")))


def asked(family: str, query: str) -> list[tuple[Any, ...]]:
    """The answer of another reader of the file to a query."""
    return duckdb.connect().execute(query.replace("TABLE", f"'{FOLDER / family}.parquet'")).fetchall()


@each_family
def test_answers_are_those_of_the_raw_file(family: str) -> None:
    truth = raynas.bench.truth(family)
    means = asked(
        family, "select values, avg(accuracy), avg(test_accuracy), avg(curve[7]), median(ms) from TABLE group by 1"
    )
    assert len(means) == len(truth.archs) == len({arch.network_id for arch in truth.archs})
    places = {arch: place for place, arch in enumerate(truth.archs)}
    for values, search, test, seventh, ms in means:
        place = places[arch := truth.space.arch(json.loads(values))]
        assert truth.accuracy(arch) == pytest.approx(search) == pytest.approx(truth.accuracies()[place])
        assert truth.accuracy(json.loads(values), split="test") == pytest.approx(test)
        assert truth.accuracy(arch, epoch=7) == pytest.approx(seventh)
        assert truth.ms[place] == pytest.approx(ms)


@each_family
def test_a_row_agrees_with_itself_and_with_its_network(family: str) -> None:
    truth = raynas.bench.truth(f"truths/{family}")
    bits = (
        "select values, seed, accuracy, test_accuracy, bit_count(search_correct::bit), bit_count(test_correct::bit), "
    )
    for values, seed, search, test, of_search, of_test, last in asked(family, bits + "curve[-1] from TABLE"):
        arch = truth.space.arch(json.loads(values))
        assert truth.accuracy(arch, seed=seed) == search == last == of_search / 1000
        assert truth.accuracy(arch, seed=seed, split="test") == test == of_test / 2000
        for split, count, of in (("search", 1000, of_search), ("test", 2000, of_test)):
            right = truth.correct(arch, seed, split)
            assert right.shape == (count,) and right.sum() == of
        assert truth.correct(arch, seed).sum() == of_search  # of the same split as `accuracy`
        assert seed in truth.seeds(arch)
    for arch, params in zip(truth.archs[:3], truth.params, strict=False):
        network = raynas.build_supernet(truth.space.fix(arch))
        assert params == sum(each.numel() for each in network.parameters())
    costs = raynas.cost(truth.space, truth.archs)
    assert truth.macs.tolist() == costs["macs"].tolist() and truth.params.tolist() == costs["params"].tolist()


@each_family
def test_the_files_are_of_the_space_as_it_is_and_truth_tables_of_rank(family: str) -> None:
    path, truth = FOLDER / f"{family}.parquet", raynas.bench.truth(family)
    assert pq.read_schema(path).metadata[b"space"].decode() == truth.space.fingerprint
    table = read_truth(path)
    assert archs_of(table, truth.space) == truth.archs
    assert list(accuracies(table).values()) == pytest.approx(truth.accuracies().tolist())
    assert path.stat().st_size < 500_000


@pytest.fixture
def truth() -> Truth:
    return raynas.bench.truth("vit")


def test_a_search_on_the_scorer_finds_what_the_forest_says(truth: Truth) -> None:
    rows = asked("vit", "select values, avg(accuracy) from TABLE group by 1")
    by_arch = {truth.space.arch(json.loads(values)): mean for values, mean in rows}
    codes = truth.space.encode(truth.archs)
    forest = RandomForestRegressor(100, random_state=3).fit(codes, [by_arch[arch] for arch in truth.archs])
    search = run_search(raynas.RandomSearch(truth.space, evaluations=30, seed=0), truth.scorer(seed=3))
    predicted = forest.predict(truth.space.encode([row.arch for row in search.history]))
    assert [row.objectives["accuracy"] for row in search.history if row.objectives] == pytest.approx(predicted.tolist())
    assert truth.scorer().score([]) == []


def test_a_network_without_a_seed_has_no_accuracy_of_it(truth: Truth) -> None:
    some = Truth(truth.space, truth.table.slice(0, 4))
    there = [0 in some.seeds(arch) for arch in some.archs]
    assert np.isnan(some.accuracies(seed=0)).tolist() == [not each for each in there]
    assert not np.isnan(some.accuracies()).any()
    with pytest.raises(UserError, match="no training with seed 9: there are 0"):
        some.accuracies(seed=9)


def test_mistakes_are_told_in_one_line(truth: Truth) -> None:
    arch = truth.archs[0]
    known = {each.network_id for each in truth.archs}
    other = next(each for each in truth.space.enumerate() if each.network_id not in known)
    for message, ask in {
        "no truth table 'vits' (did you mean 'vit'?)": lambda: raynas.bench.truth("vits"),
        "was not trained": lambda: truth.accuracy(other),
        "no training of this arch with seed 7": lambda: truth.accuracy(arch, seed=7),
        "epoch 0: a training has the epochs 1 to": lambda: truth.accuracy(arch, epoch=0),
        "earlier epochs are known on the search split": lambda: truth.accuracy(arch, epoch=3, split="test"),
        "split must be": lambda: truth.correct(arch, 0, "val"),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(UserError) as caught:
            ask()
        assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_training_made_again_gives_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole row on the machine and torch that made it; elsewhere rounding differs, and grows in training."""
    monkeypatch.syspath_prepend(EVIDENCE)
    made = runpy.run_path(str(EVIDENCE / "truths.py"))
    truth = raynas.bench.truth("vit")
    smallest = truth.archs[int(np.argmin(truth.macs))]
    (row,) = made["truth"]("vit", made["archs_of"]("vit").index(smallest), seed=0)
    (stored,) = [each for each in truth.table.to_pylist() if (each["arch"], each["seed"]) == (smallest.id, 0)]
    assert (row["arch"], row["data"]) == (stored["arch"], stored["data"])
    assert row["train_loss"][0] == pytest.approx(stored["train_loss"][0], rel=1e-3)
    assert row["accuracy"] == pytest.approx(stored["accuracy"], abs=0.05)
    assert row["test_accuracy"] == pytest.approx(stored["test_accuracy"], abs=0.05)


def test_too_few_networks_give_no_scorer() -> None:
    truth = raynas.bench.truth("vit")
    few = Truth(truth.space, truth.table.slice(0, 1))
    with pytest.raises(UserError, match=r"1 network\(s\) of .* are too few for a model"):
        few.scorer()
