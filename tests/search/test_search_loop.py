"""run_search: order, streaming, resuming, progress."""

from __future__ import annotations

from typing import Any

import pytest

from raynas.errors import UserError
from raynas.progress.reporter import Reporter
from raynas.search import NSGA2, Evolution, PredictorEvolution, RandomSearch, run_search
from raynas.space import Space
from raynas.text import duration
from tests.search.search_parts import Scorer, StreamingScorer, TwoMethods, accuracy, drive, oracle

SEARCHES: dict[str, Any] = {
    "random": lambda space: RandomSearch(space, evaluations=70),
    "evolution": lambda space: Evolution(space, evaluations=70, population=20, mutations=10, crossovers=10),
    "nsga2": lambda space: NSGA2(space, {"accuracy": "max", "macs": "min"}, evaluations=70, population=20),
    "predictor": lambda space: PredictorEvolution(
        space,
        evaluations=70,
        samples=20,
        held_out=10,
        verify=30,
        predictor=oracle,
        evolution={"initial": 40, "mutations": 10, "crossovers": 10, "generations": 2},
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("scorer", [Scorer, StreamingScorer])
@pytest.mark.parametrize("batch", [3, 50])
def test_is_the_hand_written_loop(medium: Space, name: str, scorer: type[Scorer], batch: int) -> None:
    by_hand = SEARCHES[name](medium)
    drive(by_hand)
    search = run_search(SEARCHES[name](medium), scorer(), batch=batch)
    assert search.history == by_hand.history


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("scorer", [Scorer, StreamingScorer])
def test_killed_and_run_again_scores_nothing_twice(medium: Space, name: str, scorer: type[Scorer]) -> None:
    whole = run_search(SEARCHES[name](medium), Scorer(), batch=8)
    rows: dict[str, Any] = {}
    computed: list[str] = []
    for dies_after in (0, 1, 13, 20, 9, 1000):
        run = scorer(rows, dies_after)
        search = SEARCHES[name](medium)
        try:
            run_search(search, run, batch=8)
        except KeyboardInterrupt:
            assert dies_after < 1000
        computed += run.computed
    assert search.history == whole.history
    assert len(computed) == len(set(computed)) == 70


def test_drives_a_users_search(medium: Space) -> None:
    lines: list[str] = []
    search = run_search(TwoMethods(medium, {}, {}, 0), Scorer(), progress=lines.append)
    assert [score["accuracy"] for _, score in search.told] == [accuracy(arch) for arch, _ in search.told]
    assert lines == ["search: 6 scored, 0% failed"]


def test_the_last_line_tells_everything(small: Space) -> None:
    class Half(Scorer):
        def score(self, archs: Any) -> list[Any]:
            return [
                row if index % 2 else {**row, "accuracy": None, "status": "failed"}
                for index, row in enumerate(super().score(archs))
            ]

    lines: list[str] = []
    search = run_search(RandomSearch(small, evaluations=40), Half(), progress=lines.append, name="random")
    best = search.best()
    assert lines == [f"random: 40/40 scored, best accuracy {accuracy(best):.6g} ({best.id}), 50% failed"]  # type: ignore[arg-type, union-attr]


def test_what_a_search_notes_is_shown_once(small: Space) -> None:
    lines: list[str] = []
    search = run_search(SEARCHES["predictor"](small), Scorer(), batch=7, progress=lines.append, name="front")
    noted = [line for line in lines if "/70 scored" not in line]
    assert len(search.notes) == 2 and noted == [f"front: {note}" for note in search.notes]
    assert noted[0].startswith("front: accuracy predicted from 10 scores; on 10 held out: Kendall's tau 1.000 (by MACs")


def test_every_score_is_counted_as_it_comes(small: Space) -> None:
    lines: list[str] = []
    progress = Reporter(lines.append, every_s=0.0)
    run_search(RandomSearch(small, evaluations=10), StreamingScorer(), batch=4, progress=progress)
    counted = [line.partition(" ")[2].partition(",")[0] for line in lines]
    assert list(dict.fromkeys(counted)) == [f"{n}/10 scored" for n in range(1, 11)]
    assert lines[0] == "search: 1/10 scored, 0% failed, 0 s so far"
    assert sum(line.startswith("search: 6/10 scored, best accuracy ") for line in lines) == 1


def test_a_row_for_every_arch(small: Space) -> None:
    class Forgetful(StreamingScorer):
        def score_iter(self, archs: Any) -> Any:
            return list(super().score_iter(archs))[1:]

    with pytest.raises(UserError, match="no row for 1 of 10 archs"):
        run_search(RandomSearch(small, evaluations=10), Forgetful())
    with pytest.raises(UserError, match="batch must be a whole number from 1"):
        run_search(RandomSearch(small), Scorer(), batch=0)


def test_durations() -> None:
    assert [duration(s) for s in (5, 89, 120, 9000)] == ["5 s", "89 s", "2 min", "2.5 h"]
