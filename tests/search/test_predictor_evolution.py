"""The search by a predictor: against the true front of a counted space, and its predictor against closed forms."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raynas.config import validate
from raynas.costs import cost
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, InfeasibleError, UserError
from raynas.search import PredictorEvolution, SearchConfig, build_search
from raynas.search.config import Direction
from raynas.search.predictors import PREDICTORS, Predict, assess, fit_forest, fit_gaussian_process, fit_ranking
from raynas.space import Arch, Codes, Space, load_space
from tests.search.search_parts import accuracy, drive, front_of, oracle, vit

BOTH: dict[str, Direction] = {"accuracy": "max", "macs": "min"}
EVOLUTION = {"initial": 200, "parents": 60, "mutations": 40, "crossovers": 40, "generations": 20}
SHORT = {"initial": 80, "parents": 20, "mutations": 10, "crossovers": 10, "generations": 2}
LONG: dict[str, Any] = {"samples": 30, "held_out": 15, "verify": 60, "evolution": EVOLUTION}
SMALL: dict[str, Any] = {**LONG, "evolution": SHORT}


def liar(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Callable[[Codes], np.ndarray]:
    """A predictor that is always wrong, and far off."""
    truth = oracle(space, codes, values, seed)
    return lambda codes: 100 - truth(codes)


def noise(arch: Arch) -> float:
    """An accuracy that nothing can be learnt of."""
    return int(hashlib.sha256(arch.id.encode()).hexdigest()[:8], 16) / 2**32


def test_finds_the_true_front_by_a_perfect_predictor(medium: Space) -> None:
    """Of 4,662 archs 90 are scored, 1,800 predicted."""
    true = front_of(list(medium.enumerate()))
    search = PredictorEvolution(medium, BOTH, predictor=oracle, **LONG)
    drive(search)
    assert search.evaluations == 90 and set(search.best()) == true  # type: ignore[arg-type]
    assert len(true) > 30


def test_the_forest_finds_more_of_it_than_random_archs_do(medium: Space) -> None:
    true = front_of(list(medium.enumerate()))
    search = PredictorEvolution(medium, BOTH, **{**LONG, "samples": 200, "held_out": 100})
    drive(search)
    by_generation = [{row.arch for row in search.history if row.generation == g} & true for g in (0, 1)]
    assert len(by_generation[0]) < 10 < len(by_generation[1])
    (quality,) = search.qualities
    assert quality.kendall > quality.by_macs > 0 and quality.fitted == len(quality.measured) == 100


def test_what_is_predicted_is_in_no_result(medium: Space) -> None:
    search = PredictorEvolution(medium, BOTH, predictor=liar, least_tau=-1, **SMALL)
    asked = drive(search)
    for row in search.history:
        assert row.objectives == {"accuracy": accuracy(row.arch), "macs": cost(medium, [row.arch])["macs"][0]}
    assert set(search.best()) == front_of(asked)  # type: ignore[arg-type]
    assert list(search.predictions) == asked[30:]
    assert all(said == {"accuracy": 100 - accuracy(arch)} for arch, said in search.predictions.items())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda codes: np.zeros((len(codes), 1)), r"one number for each arch, \[15\]: it gives float64 \[15, 1\]"),
        (lambda codes: 0.5, r"it gives float64 \[\]"),
        (lambda codes: [None] * len(codes), r"it gives object \[15\]"),
        (lambda codes: np.full(len(codes), math.nan), "the predictor gives nan for an arch"),
    ],
)
def test_a_predictor_that_gives_no_number_for_each_arch(medium: Space, answer: Predict, message: str) -> None:
    search = PredictorEvolution(medium, BOTH, predictor=lambda *_: answer, **SMALL)
    with pytest.raises(UserError, match=message):
        drive(search)


def test_a_predictor_that_has_learnt_nothing_is_not_used(medium: Space) -> None:
    search = PredictorEvolution(medium, BOTH, **{**SMALL, "samples": 100, "held_out": 60})
    asked = drive(search, noise)
    (quality,) = search.qualities
    assert abs(quality.kendall) < 0.3 and search.predictions == {}
    assert len(asked) == 160  # the rest is random
    assert "the predictor is not used, and the next 60 archs are random" in search.notes[1]
    any_will_do = PredictorEvolution(medium, BOTH, least_tau=-1, **{**SMALL, "samples": 100, "held_out": 60})
    assert drive(any_will_do, noise)[:100] == asked[:100] and len(any_will_do.predictions) == 60


def test_so_is_one_that_nothing_can_be_said_of(medium: Space) -> None:
    for score in (lambda arch: 0.5, lambda arch: None):  # all alike, or nothing to learn from
        search = PredictorEvolution(medium, BOTH, **SMALL)
        drive(search, score)
        assert search.evaluations == 90 and search.predictions == {} and "random" in search.notes[-1]


def test_with_a_larger_budget_it_learns_from_all_but_what_is_held_out(medium: Space) -> None:
    search = PredictorEvolution(medium, BOTH, predictor=oracle, **{**SMALL, "verify": 20}, evaluations=80)
    asked = drive(search)
    assert [quality.fitted for quality in search.qualities] == [15, 35, 55]
    for quality in search.qualities:
        assert medium.decode(quality.codes) == asked[15:30]
    assert set(asked[30:]) < set(search.predictions) and len(set(asked)) == 80


def test_one_objective_and_buckets(medium: Space) -> None:
    archs = list(medium.enumerate())
    macs = cost(medium, archs)["macs"]
    high = float(np.quantile(macs, 0.5))
    search = PredictorEvolution(medium, constraints={"macs": (None, high)}, predictor=oracle, **LONG)
    drive(search)
    assert search.best() == max((arch for arch, size in zip(archs, macs, strict=True) if size <= high), key=accuracy)
    evolution = {**SHORT, "buckets": {"macs": 1e5}, "parents": None}
    search = PredictorEvolution(medium, BOTH, predictor=oracle, **{**SMALL, "verify": 12, "evolution": evolution})
    drive(search)
    buckets = Counter(round(cost(medium, [arch])["macs"][0] / 1e5) for arch in search.predictions)
    assert buckets == dict.fromkeys(range(6), 2)  # of each the two that are predicted best


def test_a_measured_cost_takes_the_place_of_macs(medium: Space) -> None:
    """Such as the latency of a device: not a sum of parts here."""

    def ms(codes: Codes) -> np.ndarray:
        return 0.01 * medium.values(codes, "width") * medium.values(codes, "depth")

    directions: dict[str, Direction] = {"accuracy": "max", "latency": "min"}
    search = PredictorEvolution(
        medium, directions, {"latency": (None, 0.8)}, predictor=oracle, costs={"latency": ms}, **LONG
    )
    asked = drive(search)
    assert ms(medium.encode(asked)).max() <= 0.8
    archs = list(medium.enumerate())
    values = [accuracy(arch) for arch in archs]
    every = ms(medium.encode(archs))
    true, best = set(), 0.0
    for value in sorted(set(every[every <= 0.8])):
        found = max((i for i in range(len(archs)) if every[i] == value), key=values.__getitem__)
        if values[found] > best:
            true.add(archs[found])
            best = values[found]
    assert set(search.best()) == true and len(true) > 3  # type: ignore[arg-type]


def test_numbers_of_a_predictor_by_hand(small: Space) -> None:
    codes = small.encode(list(small.enumerate())[:4])
    measured, macs = np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 1, 2, 2])
    found = assess("accuracy", True, 7, codes, measured, np.array([0.2, 0.1, 0.4, 0.3]), macs)
    assert found.kendall == pytest.approx(1 / 3) and found.spearman == pytest.approx(0.6)
    assert found.rmse == pytest.approx(0.1) and found.regret == pytest.approx(0.1)
    assert found.by_macs == pytest.approx(4 / math.sqrt(4 * 6))  # tau-b: two pairs are tied
    least = assess("loss", False, 7, codes, measured, np.array([0.2, 0.1, 0.4, 0.3]), macs)
    assert least.regret == pytest.approx(0.1)  # it picks 0.2; the least is 0.1
    assert math.isnan(assess("accuracy", True, 7, codes, measured, np.full(4, 0.5), macs).kendall)
    assert "from 7 scores; on 4 held out: Kendall's tau 0.333" in found.describe()
    assert "RMSE 0.1, the best of its top 10% 0.1 below" in found.describe()


def test_the_forest_sees_whether_a_gene_acts(medium: Space) -> None:
    """One threshold of a tree tells an absent block from its smallest choice."""
    codes = medium.sample_codes(np.random.default_rng(0), 400)
    there = (codes[:, medium.index("blocks.2.heads")] >= 0).astype(float)
    predict = fit_forest(medium, codes[:200], there[:200], 3)
    assert (predict(codes[200:]) == there[200:]).all() and 0 < there.mean() < 1
    values = medium.values(codes, "width") + codes.sum(axis=1)
    first, again, other = (fit_forest(medium, codes[:200], values[:200], seed)(codes) for seed in (3, 3, 4))
    assert (first == again).all() and (first != other).any()


def rank_of(values: np.ndarray) -> list[int]:
    return np.argsort(values, kind="stable").tolist()


@pytest.mark.parametrize("name", PREDICTORS)
def test_predictors_learn_order_and_size_from_a_seed_alone(medium: Space, name: str) -> None:
    """On 400 archs that they have not seen; a guess of the mean has a tau of 0 and an error of the deviation."""
    archs = list(medium.enumerate())
    chosen = np.random.default_rng(0).permutation(len(archs))[:600]
    codes, values = medium.encode(archs)[chosen], np.array([accuracy(archs[i]) for i in chosen])
    fit, (codes, unseen), (values, truth) = PREDICTORS[name], np.split(codes, [200]), np.split(values, [200])
    np.random.seed(1)
    predicted = fit(medium, codes, values, 7)(unseen)
    np.random.seed(2)
    assert (fit(medium, codes, values, 7)(unseen) == predicted).all()
    found = assess("accuracy", True, 200, unseen, truth, predicted, cost(medium, unseen)["macs"])
    assert found.kendall > 0.7 > found.by_macs and found.rmse < 0.5 * truth.std()
    assert np.ptp(fit(medium, codes, np.full(200, 0.5), 7)(unseen)) < 1e-9
    assert fit(medium, codes[:1], values[:1], 7)(unseen) == pytest.approx(np.full(400, values[0]))


def test_the_gaussian_process_does_not_see_the_unit_and_believes_what_has_no_noise(medium: Space) -> None:
    codes = medium.sample_codes(np.random.default_rng(0), 60)
    values = medium.values(codes, "width") * medium.values(codes, "depth")
    predicted, other = (fit_gaussian_process(medium, codes, each, 0)(codes) for each in (values, 100 * values - 7))
    assert predicted == pytest.approx(values, abs=0.01 * values.std())
    assert other == pytest.approx(100 * predicted - 7)


def test_the_ranking_learns_from_order_alone(medium: Space) -> None:
    """A forest, which fits the values, changes with them."""
    codes = medium.sample_codes(np.random.default_rng(0), 80)
    values = medium.values(codes, "width") / 32 + medium.values(codes, "depth")
    stretched = np.exp(3 * values)
    first, second = (fit_ranking(medium, codes, each, 0)(codes) for each in (values, stretched))
    assert rank_of(first) == rank_of(second)
    assert (second.mean(), second.std()) == pytest.approx((stretched.mean(), stretched.std()))
    first, second = (fit_forest(medium, codes, each, 0)(codes) for each in (values, stretched))
    assert rank_of(first) != rank_of(second)


def test_the_numbers_are_the_papers() -> None:
    search = PredictorEvolution(load_space("autoformer/small"), BOTH)
    assert (search.samples, search.held_out, search.budget, search.generations) == (1024, 512, 1024 + 128, 1)


def test_from_a_preset(medium: Space) -> None:
    text = """
        name: predictor
        objectives: {accuracy: max, macs: min}
        generations: 2
        options:
          samples: 30
          held_out: 10
          verify: 20
          least_tau: 0.5
          predictor: tests.search.search_parts:oracle
          evolution: {generations: 3, initial: 50, buckets: {macs: 1.0e+5}, mutation: {depth: 0.4, "*": 0.2}}
    """
    search = build_search(validate(SearchConfig, parse_yaml(text, "preset.yaml")), medium)
    assert len(drive(search)) == 70 and search.qualities[0].fitted == 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 1}, "samples must be an integer of at least 2, not 1"),
        ({"held_out": 0}, "held_out must be an integer of at least 1"),
        ({"samples": 100}, "held_out must leave samples to learn from: give less than 100, not 512"),
        ({"verify": "all"}, "verify must be an integer"),
        ({"least_tau": 2}, r"least_tau must be in \[-1, 1\], not 2"),
        ({"predictor": "forrest"}, "unknown predictor 'forrest'.*did you mean 'forest'"),
        ({"predictor": 3}, "'module:object' or a function, not 3"),
        ({"evolution": {"popualtion": 3}}, "evolution: has no option 'popualtion'"),
        ({"evolution": {"seed": 3}}, "evolution: has no option 'seed'"),
        ({"evolution": {"buckets": {"mac": 3}}}, "'mac' is no objective"),
        ({"evolution": 3}, "must be a mapping of options"),
        ({"objectives": {"macs": "min"}}, "all objectives are costs"),
    ],
)
def test_wrong_options_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PredictorEvolution(vit(), **arguments)


def test_mistakes_are_told_before_anything_is_scored() -> None:
    with pytest.raises(InfeasibleError, match="spans"):
        PredictorEvolution(vit(), BOTH, {"macs": (None, 10.0)})
    with pytest.raises(ConfigError, match="'predictor' has no 'population'"):
        validate(SearchConfig, parse_yaml("name: predictor\noptions: {population: 3}", "preset.yaml"))
