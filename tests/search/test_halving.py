"""Successive halving: who goes on is who leads, and only archs with whole scores count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import pytest

from raynas.config import ConfigError, validate
from raynas.costs import cost
from raynas.documents import parse_yaml
from raynas.errors import UserError
from raynas.proxies.scorer import PROXIES
from raynas.search import Evolution, RandomSearch, Rung, SearchConfig, build_search, run_search
from raynas.search.halving import Judge, going_on, halve
from raynas.space import Arch, Space
from tests.search.test_racing import BOTH, SMALL, Images

RUNGS = (Rung(by="params", keep=0.5), Rung(images=100, keep=0.5), Rung(images=1000, keep=0.2))


class Judged(Images):
    """Made-up correctness, and parameters as a training-free score; counts the archs that it is asked for."""

    def __init__(self, images: int = 4000):
        super().__init__(images)
        self.judged: list[Arch] = []

    def score_proxy(self, archs: Sequence[Arch], by: str) -> list[float]:
        assert by == "params"
        self.judged += archs
        return [float(cost(arch.space, [arch])["params"][0]) for arch in archs]


def test_a_whole_space_is_halved_as_by_hand(small: Space) -> None:
    scorer = Judged()
    search = run_search(RandomSearch(small, evaluations=200), scorer, batch=200, rungs=RUNGS)
    archs = [row.arch for row in search.history]
    assert len(archs) == small.cardinality() == 126  # one bracket, though random search draws fewer at a time
    assert scorer.judged == archs
    params = {arch: cost(small, [arch])["params"][0] for arch in archs}
    first = sorted(archs, key=lambda arch: -params[arch])[:63]
    kept = [arch for arch in archs if arch in first]
    second = sorted(kept, key=lambda arch: -scorer.correct(arch)[:100].sum())[:32]
    kept = [arch for arch in archs if arch in second]
    third = sorted(kept, key=lambda arch: -scorer.correct(arch)[:1000].sum())[:7]
    for row in search.history:
        if row.arch in third:
            assert row.stopped is None and row.objectives == {"accuracy": scorer.correct(row.arch).mean()}
        elif row.arch in second:
            assert row.stopped == (scorer.correct(row.arch)[:1000].mean(), 1000, "accuracy")
        elif row.arch in first:
            assert row.stopped == (scorer.correct(row.arch)[:100].mean(), 100, "accuracy")
        else:
            assert row.stopped == (None, 0, "params")
    assert search.best() == max(third, key=lambda arch: scorer.correct(arch).mean())
    assert sum(scorer.scored.values()) == (63 - 32) * 100 + (32 - 7) * 1000 + 7 * 4000
    assert len(search.scored()) == 7 and set(search.finalists(50)) == set(third)


def test_an_arch_that_a_training_free_score_stops_keeps_its_images(small: Space) -> None:
    rungs, scorer = [Rung(images=100, keep=0.5), Rung(by="params", keep=0.5)], Judged()
    search = run_search(RandomSearch(small, evaluations=40), scorer, batch=40, rungs=rungs)
    stopped = [row for row in search.history if row.stopped and row.stopped.by == "params"]
    assert len(stopped) == 10 and len(search.scored()) == 10
    for row in stopped:
        assert row.stopped == (scorer.correct(row.arch)[:100].mean(), 100, "params")


def test_archs_that_are_cheaper_go_on_beside_better_ones(medium: Space) -> None:
    """With costs as objectives an arch is ranked by those that are better and no dearer."""
    search = RandomSearch(medium, BOTH, evaluations=40)
    archs, scorer = search.ask(40), Judged()
    rows = halve(search, archs, scorer, rungs=[Rung(images=500, keep=0.3)])
    macs = cost(medium, archs)["macs"]
    right = np.array([scorer.correct(arch)[:500].sum() for arch in archs])
    beaten = [sum(right[j] > right[i] and macs[j] <= macs[i] for j in range(40)) for i in range(40)]
    kept = sorted(range(40), key=lambda i: (beaten[i], i))[:12]
    assert {row["arch"] for row in rows if row["status"] == "ok"} == {archs[i].id for i in kept}
    front = [i for i in range(40) if beaten[i] == 0]
    assert len(front) > 1 and archs[int(macs.argmin())].id in {row["arch"] for row in rows if row["status"] == "ok"}


def test_an_evolution_goes_on_from_archs_with_whole_scores_alone(medium: Space) -> None:
    search = run_search(Evolution(medium, evaluations=60, seed=3, **SMALL), Judged(), batch=20, rungs=RUNGS)
    counts = [sum(row.stopped is None for row in search.history[start : start + 20]) for start in (0, 20, 40)]
    assert counts == [1, 1, 1]  # 20 -> 10 -> 5 -> 1
    assert search.best() in [row.arch for row in search.history if row.stopped is None]


def test_failed_archs_take_no_places(small: Space) -> None:
    class Failing(Judged):
        def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
            blocks = super().score_block(archs, first, last)
            return [None if int(arch.id, 16) % 2 else bits for arch, bits in zip(archs, blocks, strict=True)]

        def score(self, archs: Sequence[Arch]) -> list[dict[str, Any]]:
            rows = super().score(archs)
            failed = {"status": "failed", "accuracy": None}
            return [row | (failed if int(arch.id, 16) % 2 else {}) for arch, row in zip(archs, rows, strict=True)]

    search = run_search(RandomSearch(small, evaluations=60), Failing(), batch=60, rungs=[Rung(images=100, keep=0.5)])
    odd = [row for row in search.history if int(row.arch.id, 16) % 2]
    assert odd and all(row.stopped is None and row.objectives is None for row in odd)
    assert len(search.scored()) == np.ceil((60 - len(odd)) / 2)


def test_lines_count_what_was_stopped(small: Space) -> None:
    lines: list[str] = []
    run_search(RandomSearch(small, evaluations=126), Judged(), 126, lines.append, rungs=RUNGS)
    assert "0% failed, 119 stopped early" in lines[-2]
    assert "119 archs were stopped early; it took 11% of the image evaluations" in lines[-1]  # 56,100 of 504,000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("rungs: [{keep: 0.5}]", "give the number of images, or a training-free score"),
        ("rungs: [{by: dss, images: 5, keep: 0.5}]", "dss needs none"),
        ("rungs: [{by: magic, keep: 0.5}]", "az_nas"),
        ("rungs: [{images: 5, keep: 1}]", "keep"),
        ("rungs: [{images: 50, keep: 0.5}, {by: dss, keep: 0.5}, {images: 50, keep: 0.5}]", "50 images after 50"),
        ("{racing: default, rungs: [{by: dss, keep: 0.5}]}", "both stop archs early"),
        ("{batch: 1, rungs: [{by: dss, keep: 0.1}]}", "batch of 1, 1 reach rung 1, which lets them all go on"),
        ("{batch: 4, rungs: [{by: dss, keep: 0.1}, {images: 5, keep: 0.1}]}", "of 4, 1 reach rung 2"),
    ],
)
def test_wrong_rungs_are_refused_in_a_preset(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        validate(SearchConfig, parse_yaml(text, "preset"))


def test_searches_and_scorers_that_cannot_have_rungs_are_refused(small: Space) -> None:
    rungs = [Rung(images=100, keep=0.5)]
    with pytest.raises(UserError, match="rungs: PredictorEvolution learns from every score"):
        build_search(SearchConfig.model_validate({"name": "predictor", "rungs": rungs}), small)
    with pytest.raises(UserError, match=r"rungs: .* is your own"):
        build_search(
            SearchConfig.model_validate({"name": "tests.search.search_parts:TwoMethods", "rungs": rungs}), small
        )
    with pytest.raises(UserError, match=r"rungs need a scorer with score_proxy\(archs, by\)"):
        run_search(Evolution(small), Images(), rungs=[*rungs, Rung(by="dss", keep=0.5)])
    with pytest.raises(UserError, match="100 images, and whole scores have 100"):
        run_search(Evolution(small), Judged(100), rungs=rungs)
    with pytest.raises(UserError, match="use one of them"):
        run_search(Evolution(small), Judged(), racing="default", rungs=rungs)
    with pytest.raises(UserError, match="rungs must be Sequence\\[Rung\\], not"):
        run_search(Evolution(small), Judged(), rungs=[{"by": "params", "keep": 0.5}])  # type: ignore[list-item]


def test_the_smallest_share_of_a_batch_is_one_arch() -> None:
    assert [going_on(Rung(images=1, keep=keep), 7) for keep in (1e-12, 0.1, 1 / 7, 0.2)] == [1, 1, 1, 2]


def test_rungs_are_recorded_only_where_there_are_any() -> None:
    assert "rungs" not in SearchConfig().model_dump()
    config = validate(
        SearchConfig, parse_yaml("rungs: [{by: az_nas, keep: 0.25}, {images: 1000, keep: 0.25}]", "preset")
    )
    assert config == SearchConfig.model_validate(config.model_dump())
    assert [rung.by for rung in config.rungs] == ["az_nas", "accuracy"]


def test_judges_are_accuracy_and_the_training_free_scores() -> None:
    assert get_args(Judge) == ("accuracy", *PROXIES)
