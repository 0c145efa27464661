"""Searches in a run directory: what is read back from the rows is what was searched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.cluster.resources import Resources
from raynas.costs import cost
from raynas.errors import RunDirError, UserError
from raynas.phases.evaluate import evaluate, networks_to_evaluate
from raynas.phases.report_data import traces
from raynas.phases.search import (
    BASELINE,
    Scoring,
    SearchSettings,
    baseline,
    finals,
    make_scorer,
    prepare,
    search,
    search_fully,
)
from raynas.reports.collect import collect
from raynas.reports.page import write_report
from raynas.runs.run import Run
from raynas.scoring.local import LocalScorer
from raynas.search import SearchConfig
from raynas.space import Arch, Space, load_arch
from tests.small_run import PRESET, SPACE, small_run

SETTINGS = SearchSettings(search=PRESET.search, scoring=Scoring(images=40))


class Failing:
    """A scorer that stops after some archs, as a killed process would."""

    def __init__(self, scorer: LocalScorer, after: int):
        self._scorer, self._left = scorer, after

    def score(self, archs: list) -> list[Any]:
        rows = []
        for arch in archs:
            if self._left == 0:
                raise KeyboardInterrupt
            self._left -= 1
            rows += self._scorer.score([arch])
        return rows


def carry_out(run: Run, settings: SearchSettings, name: str = "search") -> None:
    ready = prepare(run, settings, name)
    with make_scorer(run, settings.scoring, Resources(replicas=0)) as scorer:
        search(ready, scorer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = small_run(tmp_path_factory.mktemp("searches") / "run")
    carry_out(run, SETTINGS)
    carry_out(run, SearchSettings(search=baseline(SETTINGS.search, 14), scoring=SETTINGS.scoring), BASELINE)
    return run


def test_history_read_back_from_rows(run: Run) -> None:
    made, finished = run.search("search").read_back()
    rows = {row["arch"]: row["accuracy"] for row in run.store.read("scores").to_pylist()}
    assert finished and made.evaluations == 14
    assert [row.objectives["accuracy"] for row in made.history] == [rows[row.arch.id] for row in made.history]
    macs = {row.arch: int(cost(SPACE, [row.arch])["macs"][0]) for row in made.history}
    best = min(made.history, key=lambda row: (-row.objectives["accuracy"], macs[row.arch]))
    assert run.arch("best") == best.arch == made.best()


def test_best_is_a_file_that_stands_alone(run: Run, tmp_path: Path) -> None:
    copied = tmp_path / "moved.yaml"
    copied.write_bytes(run.read_bytes("best/arch.yaml"))
    assert load_arch(copied) == run.arch("best")
    assert load_arch(copied).space == SPACE


def test_many_replicas_are_given_more_archs_at_a_time_and_the_search_is_the_same(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")

    class Counted:
        def __init__(self, scorer: LocalScorer, replicas: int):
            self.scorer, self.replicas, self.calls = scorer, replicas, list[int]()

        def score(self, archs: list) -> list[Any]:
            self.calls.append(len(archs))
            return self.scorer.score(archs)

        def flush(self) -> None:
            self.scorer.flush()

    config = baseline(SETTINGS.search, 14).model_copy(update={"batch": 5})
    found: dict[int, tuple[Any, list[int]]] = {}
    with make_scorer(run, SETTINGS.scoring, Resources(replicas=0)) as scorer:
        for replicas in (0, 1):
            counted = Counted(scorer, replicas)
            ready = prepare(run, SearchSettings(search=config, scoring=SETTINGS.scoring), f"by-{replicas}")
            found[replicas] = search(ready, counted).best(), counted.calls
    assert found == {0: (found[1][0], [5, 5, 4]), 1: (found[1][0], [14])}


def test_baseline_has_the_same_budget_and_constraints(run: Run) -> None:
    main, random = traces(run)
    assert (main.name, random.name) == ("evolution", "random search")
    assert len(main.archs) == len(random.archs) == 14
    made, _ = run.search(BASELINE).read_back()
    assert cost(SPACE, [row.arch for row in made.history])["macs"].max() <= 900_000
    assert main.limits == random.limits == {"macs": (None, 900_000)}


def test_an_interrupted_search_goes_on_to_the_same_end(run: Run, tmp_path: Path) -> None:
    other = small_run(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), LocalScorer(other, images=40) as scorer:
        search(prepare(other, SETTINGS), Failing(scorer, 8))
    made, finished = other.search("search").read_back()
    assert not finished and made.evaluations == 8
    assert [each.has_ended() for each in (other.search(), run.search(), run.search("another"))] == [False, True, False]
    (trace,) = traces(other)
    assert not trace.finished and len(trace.archs) == 8
    carry_out(other, SETTINGS)
    assert traces(other)[0] == traces(run)[0]
    assert other.arch("best") == run.arch("best")
    arches = other.store.read("scores")["arch"].to_pylist()
    assert len(arches) == len(set(arches)) == 14


def test_other_settings_are_refused(run: Run) -> None:
    changed = SETTINGS.model_copy(update={"search": SETTINGS.search.model_copy(update={"seed": 5})})
    with pytest.raises(RunDirError, match=r"seed was 0, is 5.*--name"):
        carry_out(run, changed)


def test_several_objectives_leave_a_front(run: Run) -> None:
    """Found by a predictor; measured on the search split, evaluated on the test split, and on the page."""
    evolution = {"initial": 20, "mutations": 5, "crossovers": 5, "generations": 2}
    options = {"samples": 12, "held_out": 6, "verify": 8, "least_tau": -1, "evolution": evolution}
    both: dict[str, Any] = {"accuracy": "max", "macs": "min"}
    settings = SearchSettings(
        search=SearchConfig(name="predictor", objectives=both, options=options), scoring=Scoring(images=40)
    )
    lines: list[str] = []
    ready = prepare(run, settings, "front")
    with make_scorer(run, settings.scoring, Resources(replicas=0)) as scorer:
        search(ready, scorer, progress=lines.append)
    assert sum("front: accuracy predicted from 6 scores; on 6 held out: Kendall's tau " in line for line in lines) == 1
    made, finished = run.search("front").read_back()
    assert finished and made.evaluations == 20
    names = {path.removesuffix(".yaml") for path in run.list("searches/front/front")}
    assert names == {row.arch.id for row in made.front()}
    chosen = load_arch(run.local_or_uri("searches/front/arch.yaml"))
    rows = {row["arch"]: row for row in run.store.read("scores").to_pylist() if row["images"] == 40}
    accuracy = {row.arch.id: row.objectives["accuracy"] for row in made.front()}
    assert accuracy == {name: rows[name]["accuracy"] for name in names}  # never a prediction
    assert accuracy[chosen.id] == max(accuracy.values())

    tested = evaluate(run, networks_to_evaluate(run, "front/front"))
    assert {row["arch"] for row in tested} == names and {row["how"] for row in tested} == {"inherited"}
    assert [row["macs"] for row in tested] == sorted(row["macs"] for row in tested)
    with pytest.raises(RunDirError, match="only a finished search with several objectives leaves a front"):
        networks_to_evaluate(run, "front")
    with pytest.raises(UserError, match="here one is wanted: give one of ") as raised:
        run.arch("front/front")
    assert all(name in str(raised.value) for name in names)
    (trace,) = (trace for trace in traces(run) if trace.front)
    assert {row["arch"]: row["accuracy"] for row in trace.front} == accuracy
    assert (
        trace.predicted is not None
        and [row["of"] for row in trace.predicted.points] == ["held out"] * 6 + ["proposed"] * 8
    )
    (row,) = trace.predicted.tried
    assert row["held_out"] == row["fitted"] == 6 and row["used"]
    page = Path(write_report(run, replace(collect(run), traces=traces(run)))).read_text()
    assert "Quality of the predictor" in page and "6 held out, 8 proposed" in page
    assert all(f"{row['accuracy']:.2%}" in page for row in tested)


def test_a_scored_arch_is_found_by_its_id(run: Run) -> None:
    made, _ = run.search("search").read_back()
    assert run.arch(made.history[3].arch.id) == made.history[3].arch


def test_so_is_one_off_the_spaces_grid(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    arch = SPACE.off_grid({**SPACE.smallest(), "width": 40})
    with LocalScorer(run, images=10) as scorer:
        scorer.score([arch])
    assert run.arch(arch.id) == arch and arch not in SPACE


def test_scores_measured_otherwise_are_kept_apart(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    carry_out(run, SETTINGS)
    before, winner = collect(run).scores, run.arch("best")
    with LocalScorer(run, images=15, precision="bf16") as scorer:
        scorer.score([winner])
    after = collect(run).scores
    assert after == before and {row["images"] for row in after} == {40}
    carry_out(run, SETTINGS)
    said = run.read_yaml("best/arch.yaml")["found"]["inherited weights"]
    rows = [row for row in run.store.read("scores").to_pylist() if row["arch"] == winner.id]
    assert {row["images"] for row in rows} == {15, 40}
    assert said["images"] == 40 and said["accuracy"] == rows[0]["accuracy"]


IN_BF16 = Scoring(images=40, precision="bf16")


def in_bf16(run: Run, search: SearchConfig = SETTINGS.search) -> list[str]:
    lines: list[str] = []
    search_fully(run, search, Resources(replicas=0), IN_BF16, progress=lines.append)
    return lines


def test_finalists_of_a_search_in_bf16_are_scored_again_in_fp32(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    lines = in_bf16(run)
    rows = run.store.read("scores").to_pylist()
    by_precision = {name: [row for row in rows if row["precision"] == name] for name in ("bf16", "fp32")}
    order: Any = lambda row: (-row["accuracy"], row["macs"], row["loss"])  # noqa: E731
    finalists = sorted(by_precision["bf16"], key=order)[:10]
    assert len(by_precision["bf16"]) > 10 and len(rows) == len(by_precision["bf16"]) + 10
    assert run.scores()["precision"].to_pylist() == ["bf16"] * len(by_precision["bf16"])
    assert {row["arch"] for row in by_precision["fp32"]} == {row["arch"] for row in finalists}
    winner = min(by_precision["fp32"], key=order)
    assert run.arch("best").id == winner["arch"]
    assert run.read_yaml("best/arch.yaml")["found"]["inherited weights"]["accuracy"] == winner["accuracy"]
    assert any("10 finalists, found in bf16, are scored again in fp32: the winner is" in line for line in lines)
    # Killed before the end and run again: nothing is scored twice, and the winner is the same.
    run.delete("best/arch.yaml")
    in_bf16(run)
    assert run.arch("best").id == winner["arch"] and len(run.store.read("scores")) == len(rows)
    assert run.search().read_back()[1] and len(run.search().scores()) == len(by_precision["bf16"])


def test_the_front_of_a_search_in_bf16_is_that_of_its_scores_in_fp32(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    both = {"name": "random", "evaluations": 12, "objectives": {"accuracy": "max", "macs": "min"}}
    in_bf16(run, SearchConfig.model_validate(both))
    exact = [row for row in run.store.read("scores").to_pylist() if row["precision"] == "fp32"]
    front = {
        one["arch"]
        for one in exact
        if not any(
            (two["accuracy"] >= one["accuracy"] and two["macs"] <= one["macs"])
            and (two["accuracy"], two["macs"]) != (one["accuracy"], one["macs"])
            for two in exact
        )
    }
    assert {arch.id for arch in run.search().front} == front and len(front) >= 1
    halved = [{**row, "accuracy": row["accuracy"] / 2} for row in exact]  # so that they differ from those in bf16
    run.store.append("scores", halved)
    told = {row["arch"]: row["accuracy"] for row in traces(run)[0].front}
    assert told == {row["arch"]: row["accuracy"] for row in halved if row["arch"] in front}


def test_scores_in_fp32_decide(tmp_path: Path) -> None:
    """Scores in the reverse order make the last of the finalists the winner."""
    run = small_run(tmp_path / "run")
    ready = prepare(run, SearchSettings(search=SETTINGS.search, scoring=IN_BF16))
    with make_scorer(run, IN_BF16, Resources(replicas=0)) as scorer:
        finished = search(ready, scorer)
    assert not run.exists("best/arch.yaml")
    lines: list[str] = []

    class Reversed:
        def score(self, archs: list[Arch], *_: Any) -> list[float]:
            return [0.01 * place for place in range(len(archs))]

    made = finals(ready, finished, Reversed(), lines.append)
    last = finished.finalists(10)[-1]
    assert made.best() == run.arch("best") == last
    assert lines[-1].endswith(f"are scored again in fp32: the winner is {last.id}, not {finished.best().id}")


class Own:
    """A search of a user's own, with a mistake at the first `ask`, at the second or in `best`; or with none."""

    def __init__(self, space: Space, mistake: str, evaluations: int, **options: Any):
        self.space, self.mistake, self.asked = space, mistake, 0
        self.evaluations = evaluations
        self.told: list[Arch] = []

    def ask(self, n: int) -> list[Arch]:
        self.asked += 1
        if self.mistake == f"ask {self.asked}":
            raise UserError("this search is refused")
        told = len(self.told)
        return [self.space.sample(np.random.default_rng(told))] if told < self.evaluations else []

    def tell(self, archs: list[Arch], scores: list[Any]) -> None:
        self.told += archs

    def best(self) -> Arch:
        if self.mistake == "best":
            raise UserError("this search is refused")
        return self.told[0]


class ByCall:
    """A search of a user's own whose archs depend on how many are asked for, and whose best is a list."""

    def __init__(self, space: Space, **options: Any):
        self.space, self.told = space, list[tuple[Arch, Any]]()

    def ask(self, n: int) -> list[Arch]:
        rng = np.random.default_rng([len(self.told), n])
        return list(dict.fromkeys(self.space.decode(self.space.sample_codes(rng, n))))

    def tell(self, archs: list[Arch], scores: list[Any]) -> None:
        self.told += zip(archs, scores, strict=True)

    def best(self) -> list[Arch]:
        return [max(self.told, key=lambda told: told[1]["accuracy"])[0]]


def test_a_users_search_is_asked_as_often_whatever_the_number_of_replicas(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    settings = SearchSettings(search=SearchConfig(name=f"{__name__}:ByCall", evaluations=9, batch=4), scoring=IN_BF16)

    class Pool:
        replicas = 2

        def __init__(self, scorer: LocalScorer):
            self.score, self.flush = scorer.score, scorer.flush

    ready = prepare(run, settings)
    with make_scorer(run, settings.scoring, Resources(replicas=0)) as scorer:
        finished = search(ready, Pool(scorer))
    made, ended = run.search().read_back()
    assert ended and [row.arch for row in made.history] == [row.arch for row in finished.history]
    lines: list[str] = []
    with make_scorer(run, Scoring(images=40), Resources(replicas=0)) as scorer:
        finals(ready, finished, scorer, lines.append)
    (best,) = finished.best()
    assert run.arch("best") == best and lines[-1].endswith(f"1 finalists, found in bf16, are scored again in fp32: "
                                                           f"the winner is {best.id}")  # fmt: skip


@pytest.mark.parametrize("mistake", ["ask 1", "ask 2", "best"])
def test_a_refused_search_leaves_its_name_free_for_the_mended_one(tmp_path: Path, mistake: str) -> None:
    run = small_run(tmp_path / "run")
    before = run.list()

    def settings(mistake: str) -> SearchSettings:
        config = SearchConfig(name=f"{__name__}:Own", evaluations=2, options={"mistake": mistake})
        return SearchSettings(search=config, scoring=Scoring(images=10))

    with pytest.raises(UserError, match="refused"):
        carry_out(run, settings(mistake), "u")
    assert run.list("searches") == [] and not run.exists("searches/u.yaml")
    if mistake == "ask 1":  # nothing was scored
        assert run.list() == before
    carry_out(run, settings("none"), "u")
    assert run.search("u").has_ended() and run.exists("searches/u/arch.yaml")
    scored = run.store.read("scores").num_rows
    assert scored == 2  # what the refused one scored counts
    with pytest.raises(RunDirError, match="began with other settings"):
        carry_out(run, settings("ask 1"), "u")


def test_an_interrupted_search_keeps_its_name(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run")
    with make_scorer(run, SETTINGS.scoring, Resources(replicas=0)) as scorer, pytest.raises(KeyboardInterrupt):
        search(prepare(run, SETTINGS), Failing(scorer, 3))
    changed = SETTINGS.model_copy(update={"search": SETTINGS.search.model_copy(update={"seed": 5})})
    with pytest.raises(RunDirError, match="began with other settings"):
        carry_out(run, changed)
