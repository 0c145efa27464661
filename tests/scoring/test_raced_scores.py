"""Scores in blocks of images: the whole scores in the end, each block computed once, wherever it is computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.results.store import Store
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.scoring.pool import ScorePool
from raynas.search import Evolution, run_search
from raynas.search.racing import racing_order, round_ends
from raynas.space import Arch, Space, load_space
from tests.scoring.scoring_parts import Graded, graded_images, make_run
from tests.scoring.test_calibrated_scores import make_hybrid_run

VOLATILE = {"seconds", "calibration_seconds", "time", "replica"}
IMAGES = 600


def evolution(space: Space) -> Evolution:
    return Evolution(space, seed=2, evaluations=45, population=15, parents=3, mutations=8, crossovers=7)


def told(search: Evolution) -> list[Any]:
    return [(row.arch.id, row.objectives, row.loss, row.stopped) for row in search.history]


def graded(space: Space, store: Store | None = None, **options: Any) -> LocalScorer:
    return LocalScorer.from_parts(space, Graded(space), *graded_images(IMAGES), store=store, **options)


def search_anywhere(folder: Path, space: Space, search: Callable[[Any], Evolution]) -> list[Any]:
    """Return what a search found, after checking that two replicas find the same as this process."""
    parts = (space, Graded(space), *graded_images(IMAGES))
    with ScorePool.from_parts(*parts, store=Run(folder / "two", create=True).store, replicas=2) as pool:
        found = told(search(pool))
    with graded(space) as scorer:
        assert told(search(scorer)) == found
    return found


def in_blocks(scorer: Any, archs: list[Arch]) -> list[np.ndarray]:
    ends = round_ends(scorer.image_count)
    blocks = [scorer.score_block(archs, first, last) for first, last in zip([0, *ends], ends, strict=False)]
    return [np.concatenate(each) for each in zip(*blocks, strict=True)]


def stable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]


def test_blocks_add_up_to_the_score_without_racing(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    whole, raced = make_run(tmp_path / "whole", space), make_run(tmp_path / "raced", space)
    with LocalScorer(whole) as scorer:
        expected = scorer.score(archs)
    with LocalScorer(raced, batch_size=16) as scorer:
        bits = in_blocks(scorer, archs)
        rows = scorer.score(archs)
        count = scorer.image_count
    for row, other, correct in zip(rows, expected, bits, strict=True):
        assert row["accuracy"] == other["accuracy"] == correct.mean() and row["images"] == count
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5) and row["top5"] == other["top5"]
    for column in ("top1", "top5", "images"):
        packed = [run.store.read("correct", ["arch", column]).to_pylist() for run in (whole, raced)]
        assert sorted(map(str, packed[0])) == sorted(map(str, packed[1]))
    blocks = raced.store.read("blocks").to_pylist()
    assert Counter(row["arch"] for row in blocks) == dict.fromkeys((a.id for a in archs), len(round_ends(count)))
    first = next(row for row in blocks if row["arch"] == archs[0].id and row["first"] == 0)
    shuffled = np.unpackbits(np.frombuffer(first["top1"], np.uint8), count=first["last"])
    stored = next(row for row in raced.store.read("correct").to_pylist() if row["arch"] == archs[0].id)["top1"]
    in_order = np.unpackbits(np.frombuffer(stored, np.uint8), count=count)
    assert (in_order[racing_order(count)[: first["last"]]] == shuffled).all()


def test_whole_scores_are_raced_without_computing(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    run = make_run(tmp_path / "run", space)
    with LocalScorer(run) as scorer:
        scorer.score(archs[:6])
        before = in_blocks(scorer, archs)
    with LocalScorer(run) as scorer:  # from the tables alone
        assert [list(bits) for bits in in_blocks(scorer, archs)] == [list(bits) for bits in before]
    assert {row["arch"] for row in run.store.read("blocks").to_pylist()} == {arch.id for arch in archs[6:]}
    assert sorted(row["arch"] for row in run.store.read("scores").to_pylist()) == sorted(arch.id for arch in archs)


def test_a_race_stops_archs_that_a_search_without_racing_does_not_keep(space: Space) -> None:
    with graded(space) as scorer:
        expected = run_search(evolution(space), scorer)
    with graded(space) as scorer:
        search = run_search(evolution(space), scorer, racing="default")
    assert [row.arch for row in search.history] == [row.arch for row in expected.history]
    assert search.best() == expected.best()
    stopped = [row.stopped.images for row in search.history if row.stopped is not None]
    assert len(stopped) > 10 and max(stopped) < IMAGES


@pytest.mark.parametrize("after", [1, 20])
def test_a_race_goes_on_where_it_was_ended(tmp_path: Path, space: Space, after: int) -> None:
    store = Run(tmp_path / "run", create=True).store
    with graded(space) as scorer:
        expected = told(run_search(evolution(space), scorer, racing="default"))

    class Ended(LocalScorer):
        left = after

        def score_block(self, archs: Any, first: int, last: int) -> list[np.ndarray | None]:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            return super().score_block(archs, first, last)

    supernet = Graded(space)
    parts = (space, supernet, *graded_images(IMAGES))
    with pytest.raises(KeyboardInterrupt), Ended.from_parts(*parts, store=store) as scorer:
        run_search(evolution(space), scorer, racing="default")
    with LocalScorer.from_parts(*parts, store=store) as scorer:
        assert told(run_search(evolution(space), scorer, racing="default")) == expected
    blocks = Counter((row["arch"], row["first"]) for row in store.read("blocks").to_pylist())
    assert set(blocks.values()) == {1}
    scored = sum(row["last"] - row["first"] for row in store.read("blocks").to_pylist())
    assert sum(supernet.passed) == scored  # nothing twice
    whole = [row["arch"] for row in store.read("scores").to_pylist()]
    assert len(set(whole)) == len(whole) == sum(row[3] is None for row in expected)


def test_a_whole_score_that_was_not_written_is_written(tmp_path: Path, space: Space, archs: list[Arch]) -> None:
    """As after a kill between the last block and the score."""
    store = Run(tmp_path / "run", create=True).store

    with LocalScorer.from_parts(space, Graded(space), *graded_images(IMAGES), store=store) as scorer:
        scorer._table.complete = lambda archs: None  # type: ignore[union-attr, method-assign]
        in_blocks(scorer, archs)
    assert store.read("scores").num_rows == 0
    supernet = Graded(space)
    with LocalScorer.from_parts(space, supernet, *graded_images(IMAGES), store=store) as scorer:
        in_blocks(scorer, archs)
        assert [row["status"] for row in scorer.score(archs)] == ["ok"] * len(archs)
    assert supernet.passed == [] and store.read("scores").num_rows == len(archs)


def test_an_arch_is_calibrated_once_for_all_its_blocks(tmp_path: Path) -> None:
    hybrid = load_space("digits/nasvit")
    some = [hybrid.smallest(), *hybrid.decode(hybrid.sample_codes(np.random.default_rng(0), 2))]
    with LocalScorer(make_hybrid_run(tmp_path / "whole", hybrid)) as scorer:
        expected = scorer.score(some)
    run = make_hybrid_run(tmp_path / "raced", hybrid)
    with LocalScorer(run) as scorer:
        in_blocks(scorer, some)
        rows = scorer.score(some)
    assert [row["accuracy"] for row in rows] == [row["accuracy"] for row in expected]
    blocks = run.store.read("blocks").to_pylist()
    calibrated = Counter(row["arch"] for row in blocks if row["calibration_seconds"] is not None)
    assert calibrated == {arch.id: 1 for arch in some} and len(blocks) > 5 * len(some)
    assert all(row["calibration_seconds"] > 0 for row in rows)


@pytest.mark.usefixtures("ray_session")
def test_two_replicas_race_as_this_process(tmp_path: Path, space: Space) -> None:
    search = search_anywhere(tmp_path, space, lambda scorer: run_search(evolution(space), scorer, racing="default"))
    assert sum(row[3] is not None for row in search) > 10


@pytest.mark.usefixtures("ray_session")
def test_replicas_are_sent_the_statistics_of_batch_norms(tmp_path: Path) -> None:
    hybrid = load_space("digits/nasvit")
    some = [hybrid.smallest(), *hybrid.decode(hybrid.sample_codes(np.random.default_rng(0), 2))]
    with LocalScorer(make_hybrid_run(tmp_path / "local", hybrid)) as scorer:
        expected = in_blocks(scorer, some)
    run = make_hybrid_run(tmp_path / "pool", hybrid)
    with ScorePool(run, replicas=2) as pool:
        found = in_blocks(pool, some)
    assert [list(bits) for bits in found] == [list(bits) for bits in expected]
    blocks = run.store.read("blocks").to_pylist()
    assert sum(row["calibration_seconds"] is not None for row in blocks) == len(some)


PROGRAM = """
import sys
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.search import run_search
from raynas.space import load_space
from tests.scoring.test_raced_scores import evolution
with LocalScorer(Run(sys.argv[1])) as scorer:
    block = scorer.score_block
    def loud(*given):
        found = block(*given)
        print("block", flush=True)
        return found
    scorer.score_block = loud
    run_search(evolution(load_space("digits/vit")), scorer, racing="default")
"""


@pytest.mark.slow
def test_a_raced_search_killed_and_run_again_scores_nothing_twice(tmp_path: Path, space: Space) -> None:
    undisturbed, run = make_run(tmp_path / "undisturbed", space), make_run(tmp_path / "run", space)
    with LocalScorer(undisturbed) as scorer:
        expected = told(run_search(evolution(space), scorer, racing="default"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])}
    command = [sys.executable, "-c", PROGRAM, str(run)]
    for blocks in (3, 12, None):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for seen, _ in enumerate(process.stdout, 1):
            if seen == blocks:
                process.kill()
        process.wait()
    with LocalScorer(run) as scorer:
        before = run.store.read("blocks").num_rows
        assert told(run_search(evolution(space), scorer, racing="default")) == expected
        assert run.store.read("blocks").num_rows == before
    for table, key in (("blocks", ("arch", "first")), ("scores", ("arch",)), ("correct", ("arch",))):
        rows = Counter(tuple(row[name] for name in key) for row in run.store.read(table).to_pylist())
        others = Counter(tuple(row[name] for name in key) for row in undisturbed.store.read(table).to_pylist())
        assert rows == others, json.dumps(table)
