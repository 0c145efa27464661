"""Rungs on real scorers: stored judgements, resumed after a kill, the same wherever archs are scored."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from raynas.costs import cost
from raynas.errors import UserError
from raynas.proxies.scorer import ProxyScorer, proxy_images
from raynas.runs.run import Run
from raynas.scoring import score_arch
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.search import Evolution, Rung, run_search
from raynas.space import Arch, Space
from tests.scoring.scoring_parts import Graded, graded_images, make_run
from tests.scoring.test_raced_scores import IMAGES, evolution, search_anywhere, told

RUNGS = (Rung(by="synflow", keep=0.6), Rung(images=100, keep=0.5))


def searched(space: Space, scorer: Any) -> Evolution:
    return run_search(evolution(space), scorer, batch=15, rungs=RUNGS)


def test_training_free_scores_are_those_of_rank_and_are_computed_once(
    tmp_path: Path, space: Space, archs: list[Arch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", space)
    data = run.data()
    expected = ProxyScorer(space, "naswot", proxy_images(space, data.search, data.normalisation)).score(archs)
    with LocalScorer(run) as scorer:
        assert scorer.score_proxy([*archs, archs[0]], "naswot") == [*expected, expected[0]]
        whole = scorer.image_count
    monkeypatch.setattr(ProxyScorer, "score", None)
    with LocalScorer(run) as scorer:
        assert scorer.score_proxy(archs, "naswot") == expected
    rows = run.store.read("proxies").to_pylist()
    assert [(row["arch"], row["by"], row["value"], row["images"], row["seed"]) for row in rows] == [
        (arch.id, "naswot", value, whole, 0) for arch, value in zip(archs, expected, strict=True)
    ]
    assert run.arch(archs[0].id) == archs[0]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("by", ["naswot", pytest.param("az_nas", marks=pytest.mark.slow)])  # among 100 other archs
def test_replicas_compute_training_free_scores_and_this_process_none(
    by: str, tmp_path: Path, space: Space, archs: list[Arch], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", space)
    data = run.data()
    images = proxy_images(space, data.search, data.normalisation)
    expected = ProxyScorer(space, by, images).score(archs[:4])
    monkeypatch.setattr(score_arch, "find", None)
    with ScorePool(run, replicas=1) as pool:
        assert pool.score_proxy(archs[:4], by) == expected


def test_an_arch_without_a_training_free_score_is_the_last_of_all(
    space: Space, archs: list[Arch], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find = score_arch.find

    def failing(proxy: str, arch: Arch, images: Tensor, seed: int) -> Any:
        if arch == archs[2]:
            raise ValueError("this arch is odd")
        return find(proxy, arch, images, seed)

    monkeypatch.setattr(score_arch, "find", failing)
    with LocalScorer.from_parts(space, Graded(space), *graded_images(IMAGES)) as scorer:
        values = scorer.score_proxy(archs, "params")
        assert [index for index, value in enumerate(values) if math.isnan(value)] == [2]
        assert values[0] == cost(space, archs[:1])["params"][0]
        rows = run_search(evolution(space), scorer, batch=15, rungs=[Rung(by="params", keep=0.5)]).history
        assert len(rows) == 45
        with pytest.raises(UserError, match="unknown proxy 'synflo'"):
            scorer.score_proxy(archs, "synflo")
    assert f"arch {archs[2].id} has no params: ValueError: this arch is odd" in caplog.text


@pytest.mark.parametrize("after", [1, 3])
def test_a_search_with_rungs_goes_on_where_it_was_ended(tmp_path: Path, space: Space, after: int) -> None:
    parts = (space, Graded(space), *graded_images(IMAGES))
    with LocalScorer.from_parts(*parts) as scorer:
        expected = told(searched(space, scorer))
    assert Counter(row[3] and row[3].by for row in expected) == {"synflow": 18, "accuracy": 12, None: 15}
    store = Run(tmp_path / "run", create=True).store

    class Ended(LocalScorer):
        left = after

        def score_block(self, archs: Any, first: int, last: int) -> Any:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super().score_block(archs, first, last)

    with pytest.raises(KeyboardInterrupt), Ended.from_parts(*parts, store=store) as scorer:
        searched(space, scorer)
    with LocalScorer.from_parts(*parts, store=store) as scorer:
        assert told(searched(space, scorer)) == expected
    rows = {table: store.read(table).to_pylist() for table in ("proxies", "blocks", "scores")}
    assert [len(rows["proxies"]), len(rows["scores"])] == [45, 15]
    assert set(Counter((row["arch"], row["first"]) for row in rows["blocks"]).values()) == {1}
    assert {(row["first"], row["last"]) for row in rows["blocks"]} == {(0, 100), (100, IMAGES)}


@pytest.mark.usefixtures("ray_session")
def test_two_replicas_give_the_search_of_this_process(tmp_path: Path, space: Space) -> None:
    search = search_anywhere(tmp_path, space, lambda scorer: searched(space, scorer))
    assert sum(row[3] is not None for row in search) == 30


def test_racing_and_rungs_of_one_run_are_told_apart(tmp_path: Path, space: Space) -> None:
    """Their blocks end at different images: each answers what it can of the other's, and searches stay as they were."""
    parts = (space, Graded(space), *graded_images(IMAGES))
    store = Run(tmp_path / "run", create=True).store

    def raced(scorer: Any) -> list[Any]:
        return told(run_search(evolution(space), scorer, racing="default"))

    def halved(scorer: Any) -> list[Any]:
        rungs = [Rung(images=90, keep=0.5), Rung(images=333, keep=0.5)]
        return told(run_search(evolution(space), scorer, batch=15, rungs=rungs))

    def without_losses(rows: list[Any]) -> list[Any]:  # which are sums over blocks
        return [(arch, objectives, stopped) for arch, objectives, _, stopped in rows]

    expected = []
    for search in (raced, halved):
        with LocalScorer.from_parts(*parts) as scorer:
            expected.append(without_losses(search(scorer)))
    rows = []
    for _ in range(2):  # the second time from the rows alone
        with LocalScorer.from_parts(*parts, store=store) as scorer:
            assert [without_losses(search(scorer)) for search in (raced, halved)] == expected
        rows.append(store.read("blocks").num_rows)
    assert rows[0] == rows[1]
