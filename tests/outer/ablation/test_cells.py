"""Which phases the rows of an ablation share, and the order in which trials of one folder are begun."""

from __future__ import annotations

from typing import Any

import pytest

from raynas.errors import UserError
from raynas.outer.ablation.cells import Shared, cells_of
from raynas.outer.trials import Proposed, Trial, Wait
from raynas.presets.ablation import load_ablation

ROWS: dict[str, Any] = {
    "default": {},
    "long search": {"search.evaluations": 200},
    "no mixup": {"recipe.mixup": 0},
    "no decay, retrained": {"retrain.recipe.weight_decay": 0},
    "long search, no decay": {"search.evaluations": 200, "retrain.recipe.weight_decay": 0},
}


def cells(rows: dict[str, Any], measure: list[str], seeds: tuple[int, ...] = (0, 4)) -> list[tuple[Any, ...]]:
    read = load_ablation({"preset": "digits", "rows": rows, "set": {"retrain.train_on": "train"}})
    return [
        (cell.name, cell.run, cell.search, cell.retraining, cell.preset.recipe.seed)
        for cell in cells_of(read.rows(), seeds, measure)
    ]


def test_rows_share_the_phases_that_they_have_in_common() -> None:
    found = cells(ROWS, ["retrained"])
    assert found[:5] == [
        ("default-0", "trials/default-0", "search", None, 0),
        ("long_search-0", "trials/default-0", "long_search", None, 0),
        ("no_mixup-0", "trials/no_mixup-0", "search", None, 0),
        ("no_decay__retrained-0", "trials/default-0", "search", "no_decay__retrained", 0),
        ("long_search__no_decay-0", "trials/default-0", "long_search", "no_decay__retrained", 0),
    ]
    assert [cell[:2] for cell in found[5:7]] == [
        ("default-4", "trials/default-4"),
        ("long_search-4", "trials/default-4"),
    ]
    assert {cell[4] for cell in found[5:]} == {4}


def test_a_row_called_as_the_runs_own_searches_has_a_search_of_its_own() -> None:
    rows = {name: {"search.evaluations": n} for n, name in enumerate(("default", "search", "random"), start=100)}
    assert [cell[2] for cell in cells(rows, ["searched"], (0,))] == ["search", "search_", "random_"]


def test_every_seed_is_that_of_training_search_and_retraining() -> None:
    read = load_ablation({"preset": "digits", "rows": ROWS})
    for cell in cells_of(read.rows(), [3], ["tested"]):
        preset = cell.preset
        assert (preset.recipe.seed, preset.search.seed, preset.retrain.seeds) == (3, 3, (3,))


@pytest.mark.parametrize(
    ("rows", "measure", "message"),
    [
        ({"a": {}, "b": {"recipe.mixup": 0.2}}, ["probes"], "'a' and 'b' are equal in all that probes depend on"),
        ({"a": {}, "b": {"search.evaluations": 9}}, ["probes", "tau"], "'a' and 'b' are equal in all that probes, tau"),
        ({"a": {}, "b": {"retrain.start": "inherited"}}, ["searched"], "'a' and 'b' are equal"),
        ({"a b": {}, "a/b": {"recipe.mixup": 0}}, ["probes"], "'a b' and 'a/b' have the same folder name"),
    ],
)
def test_equal_rows_are_refused(rows: dict[str, Any], measure: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        cells(rows, measure)


def test_rows_that_differ_in_what_is_measured_are_not_equal() -> None:
    assert len(cells({"a": {}, "b": {"search.evaluations": 9}}, ["probes", "searched"])) == 4


def proposed(number: int, run: str) -> Proposed:
    return Proposed(number, f"row-{number}", {}, run)


def test_one_trial_at_a_time_has_a_folder() -> None:
    ended: list[int] = []
    shared = Shared([proposed(0, "a"), proposed(1, "a"), proposed(2, "b")], lambda: ended.append(1))
    first, second = shared.ask(), shared.ask()
    assert isinstance(first, Proposed) and isinstance(second, Proposed)
    assert (first.number, second.number) == (0, 2)
    assert isinstance(shared.ask(), Wait)
    shared.tell(Trial(0, "row-0", {}, "a", state="failed"))
    third = shared.ask()
    assert isinstance(third, Proposed) and third.number == 1
    assert shared.ask() is None and ended == [1]


def test_trials_that_are_read_back_are_not_repeated_and_hold_their_folder() -> None:
    ended: list[int] = []
    shared = Shared([proposed(n, "a" if n < 3 else "b") for n in range(5)], lambda: ended.append(1))
    shared.tell(Trial(0, "row-0", {}, "a", state="finished"))
    shared.tell(Trial(1, "row-1", {}, "a", state="running"))
    shared.tell(Trial(3, "row-3", {}, "b", state="failed"))
    again = shared.ask()
    assert isinstance(again, Proposed) and again.number == 3
    assert isinstance(shared.ask(), Wait) and not ended
    shared.tell(Trial(1, "row-1", {}, "a", state="finished"))
    after = shared.ask()
    assert isinstance(after, Proposed) and after.number == 2 and ended == [1]
