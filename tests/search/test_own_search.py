"""Searches of a user's own: held to their contract, in one line that names what it is; and who wins among equals."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raynas.comparison import best_first
from raynas.costs import cost
from raynas.errors import UserError
from raynas.presets.preset import load_preset, override
from raynas.runs.searches import SearchSettings, make_search
from raynas.search import RandomSearch, run_search
from raynas.search.own import RecordedSearch
from raynas.search.problem import Problem
from raynas.space import Arch, Space
from tests.search.search_parts import Scorer, accuracy


class Own:
    """A search that asks by a function, tells nothing, and may name its best."""

    def __init__(self, ask: Callable[[int], Any], best: Callable[[], Any] | None = None):
        self.ask = ask
        self.tell = lambda archs, scores: None
        if best is not None:
            self.best = best


def problem(space: Space) -> Problem:
    return Problem(space, {"accuracy": "max"}, {})


def leave(code: int) -> Any:
    sys.exit(code)


def fail() -> Any:
    raise KeyError("nothing there")


def endless(space: Space) -> Iterator[Arch]:
    while True:
        yield space.smallest()


def two_more(space: Space, n: int) -> list[Arch]:
    return [space.smallest()] * (n + 2)


def in_turn(*answers: list[Arch]) -> Callable[[int], list[Arch]]:
    left = list(answers)
    return lambda n: left.pop(0)


ASKED: dict[str, tuple[Callable[[Space, int], Any], str]] = {
    "a generator": (lambda space, n: endless(space), "returned a generator"),
    "a dictionary": (lambda space, n: dict(space.smallest()), "returned a dict"),
    "dictionaries": (lambda space, n: [dict(space.smallest())], r"item 0 is a dict: space.arch\(values\)"),
    "text": (lambda space, n: "abc", "returned text 'abc'"),
    "nothing": (lambda space, n: None, "returned None"),
    "numbers": (lambda space, n: [1, 2], "item 0 is the number 1"),
    "codes": (lambda space, n: space.encode([space.smallest()]), "returned a numpy array"),
    "one arch": (lambda space, n: space.smallest(), "returned an Arch"),
    "too many": (two_more, "returned 52"),
    "the same for ever": (lambda space, n: [space.smallest()], "100 times in a row"),
    "exit": (lambda space, n: leave(5), r"ended the program \(sys.exit\(5\)\)"),
    "failure": (lambda space, n: fail(), r"failed: KeyError: 'nothing there' \(.*test_own_search.py:\d+\)"),
    "other images": (lambda space, n: [space.with_input(size=16).smallest()], "16 x 16 pixels, not 8 x 8"),
    "other classes": (lambda space, n: [space.with_input(classes=3).smallest()], "classes 3, not 10"),
}


class Of(Scorer):
    """A scorer that knows its space, as those of a run do."""

    def __init__(self, space: Space):
        super().__init__()
        self.space = space


@pytest.mark.parametrize("name", ASKED)
def test_what_breaks_the_contract_of_ask_is_named(small: Space, name: str) -> None:
    ask, words = ASKED[name]
    scorer = Of(small)
    with pytest.raises(UserError, match=words) as caught:
        run_search(Own(lambda n: ask(small, n)), scorer)
    assert "\n" not in str(caught.value) and "test_own_search:Own: ask(50)" in str(caught.value)


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (lambda space: "abc", "returned text 'abc'"),
        (lambda space: None, "returned None"),
        (lambda space: [], "returned an empty one"),
        (lambda space: space.with_input(size=16).smallest(), "16 x 16 pixels, not 8 x 8"),
        (lambda space: space.largest(), "was never told"),
        (lambda space: leave(0), r"best\(\) ended the program"),
    ],
)
def test_what_breaks_the_contract_of_best_is_named(small: Space, best: Callable[[Space], Any], words: str) -> None:
    asked = iter([[small.smallest()], []])
    own = Own(lambda n: next(asked), lambda: best(small))
    search = RecordedSearch(own, problem(small))
    run_search(search, Scorer())
    with pytest.raises(UserError, match=words):
        search.best()


def test_a_best_beyond_the_limits_is_refused_and_never_chosen(small: Space) -> None:
    archs = [small.largest(), small.smallest()]
    limit = float(cost(small, archs)["macs"][1])
    for best in (None, lambda: archs[0]):
        own = Own(in_turn(archs, []), best)
        search = RecordedSearch(own, Problem(small, {"accuracy": "max"}, {"macs": (None, limit)}))
        run_search(search, Scorer())
        assert accuracy(archs[0]) > accuracy(archs[1]) and search.evaluations == 2
        if best is None:
            assert search.best() == archs[1]
        else:
            with pytest.raises(UserError, match="within the limits"):
                search.best()


def test_the_presets_budget_binds_a_search_that_never_ends(small: Space) -> None:
    archs = list(small.enumerate())
    given = iter(archs)
    own = Own(lambda n: [next(given) for _ in range(n)])
    search = RecordedSearch(own, problem(small), evaluations=7)
    run_search(search, Scorer(), batch=3)
    assert search.evaluations == 7 and search.best() == max(archs[:7], key=accuracy)


def test_an_arch_that_is_asked_for_again_is_not_counted_again(small: Space) -> None:
    archs, lines = list(small.enumerate())[:5], list[str]()
    search = RecordedSearch(Own(in_turn(archs[:3], archs[:2], archs[3:5])), problem(small), evaluations=5)
    run_search(search, Scorer(), progress=lines.append)
    assert [row.arch for row in search.history] == [*archs[:3], *archs[:2], *archs[3:5]]
    assert search.evaluations == 5 and "search: 5/5 scored, " in lines[-1]


class Climber:
    """A search that knows of no budget."""

    def __init__(self, space: Space, objectives: Any, constraints: Any, seed: int):
        self.archs = space.enumerate()

    def ask(self, n: int) -> list[Arch]:
        return list(islice(self.archs, n))

    def tell(self, archs: Any, scores: Any) -> None:
        pass


def test_a_search_that_takes_no_budget_is_held_to_the_presets(small: Space) -> None:
    preset = override(load_preset("digits", {"search.evaluations": 7}), {"search.name": f"{__name__}:Climber"})
    settings = SearchSettings(search=preset.search)
    assert preset.search.evaluations == 7
    search = run_search(make_search(small, settings), Scorer())
    assert search.evaluations == search.budget == 7


def test_a_scorer_that_is_none(small: Space) -> None:
    with pytest.raises(UserError, match="a scorer must have score"):
        run_search(RandomSearch(small, evaluations=2), "scorer")


def test_order_of_equals() -> None:
    """By hand: score, then cost, then loss, then place."""
    scores, costs, losses = [2, 1, 1, 1, 1, 1], [0, 5, 4, 4, 4, 4], [0.0, 0.0, 0.3, 0.2, None, 0.2]
    assert best_first(scores, [costs], losses) == [3, 5, 2, 4, 1, 0]
    assert best_first([0, 0, 0]) == [0, 1, 2]


@pytest.mark.parametrize("limited", [None, "macs", "params"])
def test_of_equal_scores_the_lower_constrained_cost_wins(medium: Space, limited: str | None) -> None:
    """Against a minimum over all archs that were told, by counts of their own."""
    constraints = {} if limited is None else {limited: (None, 1e12)}
    search = RandomSearch(medium, constraints=constraints, evaluations=60)
    archs = search.ask(60)
    values = {arch: min(accuracy(arch), 0.7) for arch in archs}
    search.tell(archs, [values[arch] for arch in archs])
    tied = [arch for arch in archs if values[arch] == max(values.values())]
    costs = cost(medium, tied)[limited or "macs"]
    assert len(tied) > 1 and search.best() == tied[int(np.argmin(costs))] == search.ranking(1)[0].arch
    assert f"{len(tied)} archs have the best accuracy" in str(search.tie()) and f"{limited or 'macs'} decides" in str(
        search.tie()
    )


def test_then_the_lower_loss_wins(small: Space) -> None:
    search = RandomSearch(small, constraints={"constant": (None, 1)}, costs={"constant": lambda c: np.zeros(len(c))})
    archs = search.ask(3)
    search.tell(archs, [{"accuracy": 0.5, "loss": loss} for loss in (2.0, 1.0, 1.0)])
    assert search.best() == archs[1] and "lower loss decides" in str(search.tie())


def test_the_documented_search_works_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from raynas.commands.main import main
    from raynas.phases.report_data import traces
    from tests.small_run import small_run

    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    (tmp_path / "my_climb.py").write_text(page.split("```python\n")[-1].split("```")[0])
    monkeypatch.syspath_prepend(str(tmp_path))
    run = small_run(tmp_path / "run")
    given = ["--replicas", "0", "--images", "20", "--set"]
    setting = "search={name: 'my_climb:Climb', constraints: {macs: [null, 9.0e+5]}, options: {steps: 2}}"
    assert main(["search", str(tmp_path / "run"), *given, setting]) == 0
    winner = run.arch("best")
    rows = [row for row in run.store.read("scores").to_pylist() if row["macs"] <= 900_000]
    best = max(row["accuracy"] for row in rows)
    equal = [row for row in rows if row["accuracy"] == best]
    assert winner.id == min(equal, key=lambda row: (row["macs"], row["loss"]))["arch"]
    (trace,) = traces(run)
    assert trace.finished and trace.best == winner.id
    assert main(["report", str(tmp_path / "run")]) == 0
