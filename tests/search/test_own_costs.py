"""Costs of the caller's own, such as a predicted latency, as constraints and as objectives."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from raynas.config import validate
from raynas.costs import Constraints, sample_within
from raynas.documents import Document
from raynas.errors import ConfigError, InfeasibleError, UserError
from raynas.search import NSGA2, Evolution, RandomSearch, SearchConfig, build_search
from raynas.search.candidates import Candidates
from raynas.search.problem import Problem
from raynas.space import Codes, Space, load_space
from tests.search.search_parts import accuracy, drive

SEARCHES = {
    "random": lambda space, **given: RandomSearch(space, evaluations=60, **given),
    "evolution": lambda space, **given: Evolution(space, evaluations=60, population=12, **given),
    "nsga2": lambda space, **given: NSGA2(space, evaluations=60, population=12, **given),
}


def latency(space: Space) -> Any:
    """Not an additive one: the width counts for each block."""

    def ms(codes: Codes) -> np.ndarray:
        heads = sum(np.maximum(space.values(codes, f"blocks.{block}.heads"), 0) for block in range(2))
        return 0.01 * space.values(codes, "width") * space.values(codes, "depth") + 0.1 * heads

    return ms


@pytest.mark.parametrize("name", SEARCHES)
def test_only_what_keeps_them_is_handed_out(name: str, medium: Space) -> None:
    ms = latency(medium)
    every = ms(medium.encode(medium.enumerate()))
    limits = tuple(float(value) for value in np.quantile(every, [0.1, 0.4]))
    search = SEARCHES[name](medium, constraints={"latency": limits, "macs": (None, 2e6)}, costs={"latency": ms})
    asked = drive(search)
    found = ms(medium.encode(asked))
    assert len(asked) == 60 and found.min() >= limits[0] and found.max() <= limits[1]
    again = SEARCHES[name](medium, constraints={"latency": limits, "macs": (None, 2e6)}, costs={"latency": ms})
    assert drive(again) == asked


def test_they_are_objectives_that_nobody_scores(small: Space) -> None:
    ms = latency(small)
    search = NSGA2(small, {"accuracy": "max", "latency": "min"}, costs={"latency": ms}, evaluations=126, population=20)
    drive(search, lambda arch: {"accuracy": accuracy(arch)})
    archs = list(small.enumerate())
    points = np.array([[-accuracy(arch) for arch in archs], ms(small.encode(archs))]).T
    best = {
        arch.id
        for arch, point in zip(archs, points, strict=True)
        if not any((other <= point).all() and (other < point).any() for other in points)
    }
    assert search.evaluations == 126 and {row.arch.id for row in search.front()} == best
    only = Evolution(small, {"latency": "min"}, costs={"latency": ms}, evaluations=126)
    drive(only, lambda arch: {})
    assert ms(small.encode([only.best()])) == points[:, 1].min()  # type: ignore[list-item]
    ranked = [row.objectives["latency"] for row in only.ranking(5)]  # type: ignore[index]
    assert ranked == sorted(points[:, 1])[:5] and only.ranking(1)[0].arch == only.best()


def test_samples_keep_them(medium: Space) -> None:
    ms = latency(medium)
    constraints = Constraints(medium, {"latency": (0.6, 0.9)}, {"latency": ms})
    codes = sample_within(medium, constraints, np.random.default_rng(0), 300)
    assert len(codes) == 300 and ms(codes).min() >= 0.6 and ms(codes).max() <= 0.9
    assert set(constraints.costs(codes)) == {"macs", "params", "paper_macs", "latency"}


def test_wrong_ones(small: Space) -> None:
    ms = latency(small)
    with pytest.raises(ConfigError, match=r"no constraint on 'latecy' \(did you mean 'latency'\?\)"):
        RandomSearch(small, constraints={"latecy": (None, 1)}, costs={"latency": ms})
    with pytest.raises(ConfigError, match="no constraint on 'latency'"):
        RandomSearch(small, constraints={"latency": (None, 1)})
    with pytest.raises(ConfigError, match="macs is counted exactly"):
        RandomSearch(small, costs={"macs": ms})
    least, most = (f"{bound(ms(small.encode(small.enumerate()))):.4g}" for bound in (np.min, np.max))
    with pytest.raises(InfeasibleError, match=rf"had latency in \[.., 0.1\]; this space spans about \[{least}, {most}"):
        RandomSearch(small, constraints={"latency": (None, 0.1)}, costs={"latency": ms})


SECTION = {"latency": {"device": "cpu"}}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"constraints": {"latency": [None, 5]}}, "latency needs its conditions in search.latency"),
        ({"objectives": {"throughput": "max"}}, "throughput needs its conditions"),
        (SECTION, "neither an objective nor a constraint goes by latency"),
        ({"constraints": {"latncy": [None, 5]}, **SECTION}, "did you mean 'latency'"),
        ({"objectives": {"latency": "min"}, "latency": {"device": "tpu"}}, "timed on cpu, cuda"),
        ({"objectives": {"latency": "min"}, "latency": {"dtype": "int8"}}, "latency.dtype"),
        ({"objectives": {"latency": "min"}, "latency": {"timings": 3}}, "latency.timings"),
        ({"objectives": {"latency": "min"}, "latency": {"batch": 3}}, "did you mean 'batch_size'"),
        ({"objectives": {"latency": "min"}, "latency": {"resources": {"jetson": 0}}}, "latency.resources.jetson"),
        ({"objectives": {"latency": "min"}, "latency": {"device": "cuda", "resources": {}}}, "add GPU: 1"),
    ],
)
def test_wrong_configurations_are_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        validate(SearchConfig, Document(given, "search"))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_built_from_a_configuration(small: Space) -> None:
    config = SearchConfig.model_validate({"constraints": {"latency": [None, 0.8]}, "evaluations": 20, **SECTION})
    with pytest.raises(UserError, match="the search goes by latency: give its predictor"):
        build_search(config, small)
    ms = latency(small)
    assert ms(small.encode(drive(build_search(config, small, costs={"latency": ms})))).max() <= 0.8


def test_candidates_are_costed_piece_by_piece_until_enough_are_taken() -> None:
    space = load_space("digits/vit")
    asked: list[int] = []

    def weight(codes: Codes) -> np.ndarray:
        asked.append(len(codes))
        return codes.sum(axis=1)

    codes = space.sample_codes(np.random.default_rng(0), 9000)
    limit = float(np.quantile(codes.sum(axis=1), 0.5))
    problem = Problem(space, constraints={"weight": (None, limit)}, costs={"weight": weight})
    candidates, tally = Candidates(problem, np.random.default_rng(0), "dimensions"), Counter[str]()
    taken = candidates.take(codes, 900, tally)
    fitting = dict.fromkeys(map(tuple, codes[codes.sum(axis=1) <= limit].tolist()))
    assert list(map(tuple, taken.tolist())) == list(fitting)[:900]
    assert sum(asked) == -(-tally["tried"] // 1024) * 1024 < 5000  # and not all 9,000
    assert tally["taken"] == 900 and tally.total() == 2 * tally["tried"]


@pytest.mark.parametrize("returned", [None, 5.0, [1.0], np.full((126, 2), 1.0), ["a"] * 126])
def test_a_function_that_returns_something_else_is_refused(small: Space, returned: Any) -> None:
    with pytest.raises(ConfigError, match="cost 'latency': its function must return a number for each of 126 codes"):
        Constraints(small, {}, {"latency": lambda codes: returned}).costs(small.encode(small.enumerate()))
