"""Racing: its bets keep their error, and raced searches find what searches on all images find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from raynas.config import ConfigError, validate
from raynas.documents import parse_yaml
from raynas.errors import UserError
from raynas.progress.reporter import Reporter
from raynas.search import NSGA2, Evolution, ParetoEvolution, RandomSearch, build_search, run_search
from raynas.search.config import SearchConfig
from raynas.search.history import Cut, History
from raynas.search.objectives import non_dominated
from raynas.search.racing import ERROR, Bets, Racing, error_of, race, racing_order, round_ends
from raynas.space import Arch, Space
from tests.search.search_parts import accuracy

BOTH: Any = {"accuracy": "max", "macs": "min"}
SMALL: Any = {"population": 20, "parents": 5, "mutations": 10, "crossovers": 10}


class Images:
    """Made-up correctness on images of different difficulty, the same for archs asked again; counts what is scored.

    Args:
        quality: the ability of an arch, about 0.5 to 1.
    """

    def __init__(self, images: int = 4000, quality: Callable[[Arch], float] = accuracy, seed: int = 0):
        self.image_count = images
        self._quality = quality
        self._difficulty = np.random.default_rng(seed).normal(size=images)
        self.scored: dict[str, int] = {}
        self._known: dict[str, np.ndarray] = {}

    def correct(self, arch: Arch) -> np.ndarray:
        if arch.id not in self._known:
            self._known[arch.id] = self.draw(arch)
        return self._known[arch.id]

    def draw(self, arch: Arch) -> np.ndarray:
        noise = np.random.default_rng(int(arch.id, 16)).normal(size=self.image_count)
        return np.asarray(3 * self._quality(arch) - 1.5 + 0.3 * noise > self._difficulty)

    def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
        for arch in archs:
            self.scored[arch.id] = max(self.scored.get(arch.id, 0), last)
        return [self.correct(arch)[first:last] for arch in archs]

    def score(self, archs: Sequence[Arch]) -> list[dict[str, Any]]:
        for arch in archs:
            self.scored[arch.id] = self.image_count
        rows = {arch.id: {"accuracy": self.correct(arch).mean(), "images": self.image_count} for arch in archs}
        return [{"arch": arch.id, "status": "ok", **rows[arch.id]} for arch in archs]


SEARCHES: dict[str, Callable[[Space], Any]] = {
    "evolution": lambda space: Evolution(space, evaluations=200, seed=3, **SMALL),
    "nsga2": lambda space: NSGA2(space, BOTH, evaluations=150, population=15),
    "pareto": lambda space: ParetoEvolution(
        space, BOTH, evaluations=150, initial=50, parents=6, mutations=10, crossovers=10
    ),
    "random": lambda space: RandomSearch(space, evaluations=200),
    "random front": lambda space: RandomSearch(space, BOTH, evaluations=200),
}


@pytest.mark.parametrize("error", [0.1, 0.01])
def test_an_arch_as_good_as_the_cut_is_stopped_as_rarely_as_promised(error: float) -> None:
    rng = np.random.default_rng(1)
    images, trials = 400, 600
    typical = rng.beta(0.3, 0.15, images)
    correct = rng.random(images) < typical
    stopped = 0
    for _ in range(trials):
        order = rng.permutation(images)
        bets = Bets(correct[None, order], error)
        bets.pair(typical[order], np.array([correct.sum()]), seen=0)
        ends = round_ends(images)
        rounds = zip([0, *ends], ends[:-1], strict=False)
        stopped += any(bets.lost(np.array([0]), first, last)[0] for first, last in rounds)
    assert stopped < trials * error + 3 * np.sqrt(trials * error)
    if error == 0.1:
        assert stopped > 0.1 * trials * error  # it does bet


@pytest.mark.parametrize(("behind", "most"), [(0.05, 0.25), (0.02, 0.7)])
def test_an_arch_is_stopped_the_sooner_the_worse_it_is(behind: float, most: float) -> None:
    rng = np.random.default_rng(2)
    images = 10_000
    typical = rng.beta(0.3, 0.15, images)
    correct = rng.random((20, images)) < typical
    cuts = correct.sum(axis=1) + int(behind * images)
    bets = Bets(correct, ERROR)
    bets.pair(typical, cuts, seen=0)
    ends, racing, seen = round_ends(images), np.arange(20), 0
    for first, last in zip([0, *ends], ends[:-1], strict=False):
        seen += len(racing) * (last - first)
        racing = racing[~bets.lost(racing, first, last)]
    assert len(racing) == 0 and seen < most * 20 * images


def test_rounds_and_order_depend_on_the_number_of_images_alone() -> None:
    ends = round_ends(50_000)
    assert ends[0] == 782 and ends[-1] == 50_000 and (np.diff(ends) > 0).all()
    assert round_ends(40) == [40] and round_ends(100) == [64, 80, 100]
    assert sorted(racing_order(1000)) == list(range(1000))
    assert (racing_order(1000) == racing_order(1000)).all()


@pytest.mark.parametrize("name", ["evolution", "random"])
@pytest.mark.parametrize("racing", ["conservative", "default"])
def test_a_raced_search_is_the_search_without_racing(medium: Space, name: str, racing: Racing) -> None:
    whole, raced = Images(), Images()
    expected = run_search(SEARCHES[name](medium), whole)
    search = run_search(SEARCHES[name](medium), raced, racing=racing)
    assert [row.arch for row in search.history] == [row.arch for row in expected.history]
    assert search.best() == expected.best()
    assert sum(raced.scored.values()) < 0.95 * sum(whole.scored.values())
    for row in search.history:
        if row.stopped is None:
            assert row.objectives == expected.history[row.order].objectives
            assert raced.scored[row.arch.id] == raced.image_count
        else:
            assert row.objectives is None
            assert row.stopped.images == raced.scored[row.arch.id] < raced.image_count
            assert row.stopped.accuracy == raced.correct(row.arch)[: row.stopped.images].mean()


@pytest.mark.parametrize("name", ["nsga2", "pareto", "random front"])
def test_archs_on_a_front_are_never_stopped(medium: Space, name: str) -> None:
    search, images = SEARCHES[name](medium), Images()
    run_search(search, images, racing="conservative")
    macs = {row.arch: row.costs["macs"] for row in search.history}
    points = np.array([[-images.correct(row.arch).mean(), macs[row.arch]] for row in search.history])
    front = [row.arch for row, on in zip(search.history, non_dominated(points), strict=True) if on]
    assert [row.arch for row in search.front()] == front == search.best()
    assert {images.scored[arch.id] for arch in front} == {images.image_count}
    assert sum(images.scored.values()) < 0.9 * len(search.history) * images.image_count


def test_settings_cost_less_from_conservative_to_default(medium: Space) -> None:
    costs = []
    for racing in ("off", "conservative", "default"):
        images = Images()
        run_search(SEARCHES["evolution"](medium), images, racing=racing)  # type: ignore[arg-type]
        costs.append(sum(images.scored.values()))
    assert costs[0] > 1.5 * costs[1] and costs[1] > 1.1 * costs[2]


def test_ties_get_all_images(medium: Space) -> None:
    """Archs with the same predictions are never told apart, whatever the cut."""

    class Equal(Images):
        def draw(self, arch: Arch) -> np.ndarray:
            return np.asarray(self._difficulty < 1)

    images = Equal()
    search = run_search(SEARCHES["evolution"](medium), images, racing="default")
    assert set(images.scored.values()) == {images.image_count}
    assert all(row.stopped is None for row in search.history)


def test_stopped_archs_never_win_however_lucky_their_first_images(medium: Space) -> None:
    """Every second arch has all of the first third of the images right, and none of the others."""

    class Lucky(Images):
        def draw(self, arch: Arch) -> np.ndarray:
            lucky = int(arch.id, 16) % 2 == 0
            return np.arange(self.image_count) < self.image_count / 3 if lucky else super().draw(arch)

    search = run_search(SEARCHES["evolution"](medium), images := Lucky(), racing="default")
    best = search.best()
    stopped = [row for row in search.history if row.stopped is not None]
    assert max(row.stopped.accuracy for row in stopped if row.stopped) > images.correct(best).mean()
    assert images.scored[best.id] == images.image_count
    whole = [row for row in search.history if row.stopped is None]
    assert best in [row.arch for row in whole] and not {row.arch for row in stopped} & set(search.finalists(50))
    assert len(search.scored()) == len(whole)


def test_the_first_archs_of_a_search_are_raced_against_their_leaders(medium: Space) -> None:
    search, images = SEARCHES["evolution"](medium), Images()
    archs = search.ask(20)
    rows = race(search, archs, images, error_of("default", search))
    assert [row["arch"] for row in rows] == [arch.id for arch in archs]
    best = sorted(archs, key=lambda arch: -images.correct(arch).mean())[: SMALL["parents"]]
    whole = {row["arch"] for row in rows if row["status"] == "ok"}
    assert {arch.id for arch in best} <= whole and len(whole) < 20


def test_a_failed_arch_is_told_as_failed(medium: Space) -> None:
    class Failing(Images):
        def fails(self, arch: Arch, first: int) -> bool:
            return int(arch.id, 16) % 3 == 0 and first >= 64

        def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
            blocks = super().score_block(archs, first, last)
            return [None if self.fails(arch, first) else bits for arch, bits in zip(archs, blocks, strict=True)]

        def score(self, archs: Sequence[Arch]) -> list[dict[str, Any]]:
            rows = super().score(archs)
            return [
                {"arch": arch.id, "status": "failed", "accuracy": None, "images": self.image_count}
                if self.fails(arch, 64)
                else row
                for arch, row in zip(archs, rows, strict=True)
            ]

    search = run_search(SEARCHES["evolution"](medium), Failing(), racing="default")
    failed = [row for row in search.history if row.objectives is None and row.stopped is None]
    assert failed and all(int(row.arch.id, 16) % 3 == 0 for row in failed)
    assert int(search.best().id, 16) % 3


def test_lines_say_what_racing_saved(medium: Space) -> None:
    lines: list[str] = []
    run_search(SEARCHES["evolution"](medium), Images(), progress=lines.append, racing="default")
    assert "stopped early; it took" in lines[-1] and "% of the image evaluations" in lines[-1]
    assert ", 0% failed" in lines[-2]


def test_progress_moves_with_every_round_of_a_race(medium: Space) -> None:
    lines: list[str] = []
    told: list[int] = []  # lines before each block

    class Watched(Images):
        def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
            told.append(len(lines))
            return super().score_block(archs, first, last)

    search = run_search(
        SEARCHES["evolution"](medium), Watched(), progress=Reporter(lines.append, 0.0), racing="default"
    )
    assert all(later > before for before, later in zip(told, told[2:], strict=False))  # the holders' blocks are silent
    counts = [int(line.split()[1].partition("/")[0]) for line in lines if "/" in line]
    assert counts == sorted(counts) and counts[-1] == search.evaluations
    stopped = sum(row.stopped is not None for row in search.history)
    assert stopped and f", {stopped} stopped early" in lines[-2]


def test_archs_under_way_count_by_their_share_of_the_images(medium: Space) -> None:
    """With as many places as archs, nobody is stopped: the images seen alone move it."""
    search, images, done = RandomSearch(medium, evaluations=4), Images(1000), list[float]()
    search.cut = lambda: Cut(4, [])  # type: ignore[method-assign]
    race(search, search.ask(4), images, 0.2, done.append)
    assert done == pytest.approx([4 * end / 1000 for end in round_ends(1000)])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"name": "predictor"}, "PredictorEvolution learns from every score"),
        ({"name": "optuna"}, "OptunaSearch learns from every score"),
        ({"name": "pareto", "objectives": BOTH, "options": {"buckets": {"macs": 1e5}}}, "ParetoEvolution learns"),
        ({"objectives": {"loss": "min"}}, "by their accuracy"),
        ({"name": "nsga2", "objectives": {"accuracy": "max", "loss": "min"}}, "by their accuracy"),
        ({"name": "tests.search.search_parts:TwoMethods"}, "your own"),
    ],
)
def test_searches_without_a_rule_are_refused(small: Space, config: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"racing.*{why}"):
        build_search(SearchConfig.model_validate({**config, "racing": "default"}), small)
    build_search(SearchConfig.model_validate({**config, "racing": "off"}), small)


def test_a_scorer_without_blocks_is_refused(small: Space) -> None:
    class OnlyWhole:
        def score(self, archs: Sequence[Arch]) -> list[float]:
            return [0.5 for _ in archs]

    with pytest.raises(UserError, match=r"racing needs a scorer with score_block"):
        run_search(Evolution(small), OnlyWhole(), racing="default")
    for wrong in (False, True, None, "on"):
        with pytest.raises(UserError, match=r"racing must be .off. or .conservative. or .default., not"):
            run_search(Evolution(small), OnlyWhole(), racing=wrong)  # type: ignore[arg-type]


def test_off_is_the_default_and_is_not_recorded() -> None:
    for text in ("racing: off", "racing: 'off'", "racing: false", "batch: 50"):
        config = validate(SearchConfig, parse_yaml(text, "preset"))
        assert config.racing == "off" and "racing" not in config.model_dump()
    assert validate(SearchConfig, parse_yaml("racing: default", "preset")).model_dump()["racing"] == "default"
    with pytest.raises(ConfigError, match=r"racing.*'off', 'conservative' or 'default'"):
        validate(SearchConfig, parse_yaml("racing: on", "preset"))


def test_a_search_without_a_cut_has_none(small: Space) -> None:
    assert History(Evolution(small).problem).cut() is None
