"""Raced searches in a run directory: what is read back is what was searched, and only whole scores are used later."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from raynas.cluster.resources import Resources
from raynas.data.images import decode
from raynas.data.pixels import normalise
from raynas.errors import RunDirError, UserError
from raynas.nets import build_supernet
from raynas.nets.weights import weights_fingerprint
from raynas.phases.report_data import traces
from raynas.phases.search import Scoring, SearchSettings, make_scorer, prepare, search
from raynas.reports.collect import collect
from raynas.reports.page import write_report
from raynas.reports.status import status
from raynas.runs.run import Run
from raynas.search import Rung, SearchConfig
from raynas.space import load_arch
from tests.reports.test_report import Page
from tests.small_run import PRESET, SPACE, small_run

RACED = SearchConfig.model_validate({**PRESET.search.model_dump(), "racing": "default", "evaluations": 30})


def carry_out(run: Run, config: SearchConfig, name: str = "search") -> list[str]:
    lines: list[str] = []
    ready = prepare(run, SearchSettings(search=config), name)
    with make_scorer(run, Scoring(), Resources(replicas=0)) as scorer:
        search(ready, scorer, lines.append)
    return lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose subnets differ: some steps of training, which make the large ones better."""
    run = small_run(path := tmp_path_factory.mktemp("trained") / "run")
    torch.manual_seed(0)
    rng, supernet, data = np.random.default_rng(0), build_supernet(SPACE), run.supernet().data
    pixels, labels = decode(data.search)
    images = normalise(pixels, data.normalisation)
    optimiser = torch.optim.AdamW(supernet.parameters(), lr=3e-3)
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(supernet(images, SPACE.sample(rng)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    state = supernet.state_dict()
    run.write_bytes("supernet.safetensors", save(state))
    run.write_json("supernet.json", {"fingerprint": weights_fingerprint(state), "seed": 0})
    return path


@pytest.fixture(scope="module")
def run(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = Run(shutil.copytree(trained, tmp_path_factory.mktemp("raced") / "run"))
    carry_out(run, RACED)
    return run


def test_a_raced_search_is_read_back_from_its_blocks(run: Run) -> None:
    made, finished = run.search("search").read_back()
    assert finished and made.evaluations == 30
    stopped = [row for row in made.history if row.stopped is not None]
    scores = run.search("search").scores()
    assert stopped and not {row.arch.id for row in stopped} & set(scores)
    assert all(row.objectives["accuracy"] == scores[row.arch.id]["accuracy"] for row in made.scored())
    assert run.search("search").settings.search.racing == "default"
    assert run.arch("best") == made.best() and made.best().id in scores


def test_a_raced_search_that_has_ended_scores_nothing_more(run: Run) -> None:
    before = {table: run.store.read(table).num_rows for table in ("scores", "correct", "blocks", "phases")}
    winner = run.read_bytes("best/arch.yaml")
    carry_out(run, RACED)
    assert {table: run.store.read(table).num_rows for table in before} == before
    assert run.read_bytes("best/arch.yaml") == winner


def test_watching_a_raced_search_counts_what_was_stopped(run: Run) -> None:
    made, _ = run.search("search").read_back()
    stopped = sum(row.stopped is not None for row in made.history)
    (search,) = [work for work in status(run) if work.what == "search"]
    assert search.progress == "30/30 scored" and search.newest.endswith(f", 0% failed, {stopped} stopped early")


def test_the_winner_rests_on_all_images(run: Run) -> None:
    images = {row["images"] for row in run.store.read("scores").to_pylist()}
    assert len(images) == 1
    winner = load_arch(run.local_or_uri("best/arch.yaml"))
    blocks = [row for row in run.store.read("blocks").to_pylist() if row["arch"] == winner.id]
    assert max(row["last"] for row in blocks) == images.pop()


def test_the_same_search_without_racing_has_the_same_winner_and_scores_only_what_was_stopped(run: Run) -> None:
    lines = carry_out(run, RACED.model_copy(update={"racing": "off"}), "whole")
    assert not any("racing" in line for line in lines)
    made, _ = run.search("whole").read_back()
    raced, _ = run.search("search").read_back()
    assert [row.arch for row in made.history] == [row.arch for row in raced.history]
    assert run.search("whole").winner == run.search("search").winner
    names = [row["arch"] for row in run.store.read("scores").to_pylist()]
    assert len(names) == len(set(names)) == 30
    # Whole scores of stopped archs change nothing in the raced search.
    assert [row.stopped for row in run.search("search").read_back()[0].history] == [r.stopped for r in raced.history]


def test_the_report_shows_a_raced_search(run: Run) -> None:
    trace = traces(run)[0]
    assert trace.finished and len(trace.accuracy) == 30 and None in trace.accuracy
    page = Page(Path(write_report(run, replace(collect(run), traces=traces(run)))).read_text())
    blocks = run.store.read("blocks").to_pylist()
    seen = {name: max((row["last"] for row in blocks if row["arch"] == name), default=0) for name in trace.archs}
    whole = run.store.read("scores")["images"][0].as_py()
    stopped = [images for images in seen.values() if images < whole]
    assert page.rows("racing") == [
        {
            "search": "evolution",
            "racing": "default",
            "subnets stopped early": str(len(stopped)),
            "after images, on average": f"{np.mean(stopped):.0f}",
            "of": str(whole),
            "image evaluations saved": f"{1 - sum(seen.values()) / (30 * whole):.2%}",
        }
    ]


def test_races_on_fewer_images_do_not_hide_one_on_all(run: Run, tmp_path: Path) -> None:
    other = Run(shutil.copytree(run.local_or_uri(), tmp_path / "run"))
    few = Scoring(images=150)
    ready = prepare(other, SearchSettings(search=RACED, scoring=few), "few")
    with make_scorer(other, few, Resources(replicas=0)) as scorer:
        search(ready, scorer)
    assert other.search("few").read_back()[1]
    assert other.search("search").read_back()[1]
    assert other.search("search").read_back()[0].history == run.search("search").read_back()[0].history


def test_a_race_of_archs_with_whole_scores_is_read_back(run: Run, trained: Path, tmp_path: Path) -> None:
    other = Run(shutil.copytree(trained, tmp_path / "run"))
    carry_out(other, RACED.model_copy(update={"racing": "off"}), "whole")
    carry_out(other, RACED)
    assert other.store.read("blocks").num_rows == 0
    made, finished = other.search("search").read_back()
    assert finished and made.history == run.search("search").read_back()[0].history


def test_another_setting_of_racing_is_refused_with_both_values(run: Run) -> None:
    with pytest.raises(RunDirError, match=r"search\.racing was 'default', is 'off'; give the same, or search under"):
        carry_out(run, RACED.model_copy(update={"racing": "off"}))


def test_an_arch_that_was_stopped_is_found_by_its_id(run: Run) -> None:
    made, _ = run.search("search").read_back()
    for row in made.history:
        assert run.arch(row.arch.id) == row.arch


def test_a_raced_search_that_has_not_ended_is_read_back_as_far_as_it_came(
    run: Run, trained: Path, tmp_path: Path
) -> None:
    other = Run(shutil.copytree(trained, tmp_path / "run"))
    ready = prepare(other, SearchSettings(search=RACED))
    with make_scorer(other, Scoring(), Resources(replicas=0)) as scorer:
        whole, left = scorer.score_block, [12]

        def ended(*given: object) -> object:
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return whole(*given)

        scorer.score_block = ended
        with pytest.raises(KeyboardInterrupt):
            search(ready, scorer)
    made, finished = other.search("search").read_back()
    assert not finished and made.evaluations < 30
    carry_out(other, RACED)
    assert other.search("search").read_back()[0].history == run.search("search").read_back()[0].history


RUNGS = SearchConfig.model_validate(
    {
        **PRESET.search.model_dump(),
        "evaluations": 30,
        "batch": 10,
        "rungs": [{"by": "params", "keep": 0.7}, {"images": 100, "keep": 0.4}],
    }
)


def test_a_search_with_rungs_is_read_back_and_found_by_ids(run: Run) -> None:
    before = run.store.read("scores").num_rows
    lines = carry_out(run, RUNGS, "rungs")
    stored = run.search("rungs")
    made, finished = stored.read_back()
    stopped = [row for row in made.history if row.stopped is not None]
    assert finished and {row.stopped.by for row in stopped if row.stopped} == {"params", "accuracy"}
    assert any(f", {len(stopped)} stopped early" in line for line in lines) and made.best() == stored.winner
    assert all(run.arch(row.arch.id) == row.arch for row in stopped)
    assert run.store.read("scores").num_rows <= before + len(made.scored())
    (trace,) = [trace for trace in traces(run) if trace.racing == "rungs"]
    assert len(trace.stopped) == len(stopped)  # what the report says, as of the raced search above
    tables = {table: run.store.read(table).num_rows for table in ("scores", "blocks", "proxies", "phases")}
    carry_out(run, RUNGS, "rungs")
    assert {table: run.store.read(table).num_rows for table in tables} == tables


def test_rungs_with_as_many_images_as_whole_scores_are_refused_before_anything_is_written(run: Run) -> None:
    config = RUNGS.model_copy(update={"rungs": (Rung(images=10**6, keep=0.5),)})
    with pytest.raises(UserError, match=r"rungs: 1,000,000 images, and whole scores have"):
        carry_out(run, config, "too many")
    assert not run.search("too many").has_begun
