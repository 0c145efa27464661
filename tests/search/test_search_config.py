"""The search section of a preset, and the search that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raynas.config import validate
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, InfeasibleError, UserError
from raynas.search import NSGA2, Evolution, ParetoEvolution, RandomSearch, SearchConfig, build_search, run_search
from raynas.search.base import SearchArguments
from raynas.search.config import OPTIONS, SEARCHES
from raynas.space import Space, load_space
from tests.search.search_parts import Scorer, TwoMethods, drive


def read(text: str) -> SearchConfig:
    return validate(SearchConfig, parse_yaml(text, "preset.yaml"))


def test_everything_set(medium: Space) -> None:
    config = read(
        """
        name: evolution
        objectives: {accuracy: max}
        constraints: {macs: [null, 1.8e9], params: [5000, null]}
        generations: 3
        options: {population: 20, mutations: 10, crossovers: 10, crossover: block, mutation: {depth: 0.2, "*": 0.4}}
        seed: 5
        batch: 10
        """
    )
    assert config.constraints == {"macs": (None, 1.8e9), "params": (5000.0, None)}
    search = build_search(config, medium)
    direct = Evolution(
        medium,
        {"accuracy": "max"},
        {"macs": (None, 1.8e9), "params": (5000.0, None)},
        5,
        generations=3,
        population=20,
        mutations=10,
        crossovers=10,
        crossover="block",
        mutation={"depth": 0.2, "*": 0.4},
    )
    assert drive(search) == drive(direct)
    assert search.evaluations == 80


def test_the_default_is_the_released_evolution(medium: Space) -> None:
    search = build_search(read("{}"), medium)
    assert isinstance(search, Evolution)
    assert search.budget == 1050
    assert search.objectives.directions == {"accuracy": "max"}


def test_the_seed_can_be_given(medium: Space) -> None:
    config = read("name: random\nevaluations: 10")
    assert drive(build_search(config, medium, seed=7)) == drive(RandomSearch(medium, seed=7, evaluations=10))


@pytest.mark.parametrize("name", SEARCHES)
def test_options_are_a_searchs_own_and_a_wrong_one_is_one_line(name: str, medium: Space) -> None:
    assert OPTIONS[name] and not {*OPTIONS[name]} & {*SearchArguments.__annotations__}
    for wrong, right in (("constrains", "constraints"), (f"{OPTIONS[name][0]}s", OPTIONS[name][0])):
        with pytest.raises(UserError, match=rf"^\w+ has no option '{wrong}' \(did you mean '{right}'\?\)$"):
            SEARCHES[name](medium, **_given(wrong, 3))


def test_options_of_another_search_are_refused(medium: Space) -> None:
    with pytest.raises(UserError, match="RandomSearch has no generations: give evaluations"):
        RandomSearch(medium, generations=3)
    for option in ("any_pair", "changes", "population"):
        with pytest.raises(UserError, match=f"ParetoEvolution has no option '{option}'"):
            ParetoEvolution(medium, **_given(option, True))


def _given(option: str, value: Any) -> dict[str, Any]:
    return {option: value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: evolutoin", "unknown search 'evolutoin'.*did you mean 'evolution'.*module:object"),
        ("evaluation: 3", "preset.yaml:1.*did you mean 'evaluations'"),
        ("options: {populaton: 3}", "did you mean 'population'"),
        ("name: random\noptions: {population: 3}", "'random' has no 'population'"),
        ("name: random\ngenerations: 3", "random search has none"),
        ("constraints: {mac: [1, 2]}", "did you mean 'macs'"),
        (
            "constraints: {macs: 3}",
            r"macs: give \[low, high\], with null .*: \[null, 4.5e9\] is at most 4.5e9, found 3",
        ),
        ("constraints: null", r"constraints: expected a mapping \({} for an empty one\), found nothing"),
        ("latency: 3\nconstraints: {latency: [0, 1]}", "latency: expected a mapping"),
        ("constraints: {macs: [3, 2]}", "lower bound 3 is above the upper bound 2"),
        ("constraints: {macs: [.nan, 2]}", "finite"),
        ("constraints: {macs: [a, 2]}", "number"),
        ("objectives: {}", "objectives"),
        ("objectives: {accuracy: up}", "'max' or 'min'"),
        ("objectives: {accuracy: max, macs: min}", "use nsga2"),
        ("evaluations: 0", "evaluations"),
        ("batch: 0", "batch"),
    ],
)
def test_mistakes_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_mistakes_that_need_the_space(medium: Space) -> None:
    with pytest.raises(UserError, match="population must be an integer"):
        build_search(read("options: {population: many}"), medium)
    with pytest.raises(UserError, match="did you mean 'width'"):
        build_search(read("options: {mutation: {widht: 0.1, '*': 0.1}}"), medium)
    with pytest.raises(InfeasibleError, match="spans"):
        build_search(read("constraints: {macs: [null, 10]}"), medium)


def test_several_objectives(medium: Space) -> None:
    search = build_search(read("name: nsga2\nobjectives: {accuracy: max, macs: min}"), medium)
    assert isinstance(search, NSGA2)
    assert search.objectives.names == ["accuracy", "macs"]


def test_a_search_of_the_users_own(medium: Space) -> None:
    search = build_search(read("name: tests.search.search_parts:TwoMethods\noptions: {steps: 2}\nseed: 4"), medium)
    assert isinstance(search, TwoMethods)
    assert len(drive(search)) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: tests.search.search_parts:Missing", "cannot be imported"),
        ("name: no_such_module:Search", "cannot be imported"),
        ("name: tests.search.search_parts:not_a_search", "ask.*tell"),
        (
            "name: tests.search.search_parts:TwoMethods\noptions: {step: 2}",
            "has no option 'step' .did you mean 'steps'",
        ),
        ("name: tests.search.search_parts:TwoMethods\ngenerations: 2", "has no option 'generations'"),
        ("name: tests.search.search_parts:__doc__", "is not callable: it is text"),
    ],
)
def test_mistakes_in_a_search_of_the_users_own(medium: Space, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_search(read(text), medium)


def test_the_search_in_the_documentation_works(medium: Space) -> None:
    page = (Path(__file__).parents[2] / "docs" / "search.md").read_text()
    code = page.split("```python\n")[-1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    climb = names["Climb"](medium, {"accuracy": "max"}, {"macs": (None, 1e9)}, seed=0, steps=3)
    run = run_search(climb, Scorer())
    assert run.steps == 0
    preset = page.split("```yaml\n")[1].split("```")[0]
    config = validate(SearchConfig, parse_yaml(preset, "docs"), ("search",))
    assert build_search(config, load_space("autoformer/tiny")).budget == 1050


@pytest.mark.parametrize("name", ["evolution", "nsga2"])
@pytest.mark.parametrize("value", [None, "many", [3], True])
def test_an_option_that_is_no_number_is_refused(medium: Space, name: str, value: Any) -> None:
    numbers = [option for option in OPTIONS[name] if option not in ("mutation", "crossover", "any_pair")]
    for option in numbers:
        if value is None and (name, option) in (
            ("nsga2", "parents"),
            ("evolution", "initial"),
        ):  # all of the population
            continue
        with pytest.raises(UserError, match=option):
            build_search(SearchConfig(name=name, options={option: value}), medium)


def test_top5_of_five_classes_is_refused(medium: Space) -> None:
    config = SearchConfig(objectives={"top5": "max"}, evaluations=4, options={"population": 4})
    assert build_search(config, medium.with_input(classes=6)).objectives.names == ["top5"]
    with pytest.raises(UserError, match="with 5 classes there is no top5: search by accuracy or loss"):
        build_search(config, medium.with_input(classes=5))
