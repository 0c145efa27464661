"""Racing of searches on made-up correctness, and on supernets of digits: evaluations of images, and what is found.

    python docs/evidence/racing.py --out racing [race_simulated race_error halve_simulated race_supernets]

Stop it at any time, run it again. docs/evidence/racing_tables.py reads the rows.

* `race_simulated`: evolutions of 1,050 archs of AutoFormer's tiny space on 50,000 made-up images, without racing and
  with both settings.
* `race_error`: 1,000 evolutions of 100 archs on 3,000 made-up images, whose archs are nothing but an ability: how
  often an arch with a place among the parents is stopped.
* `halve_simulated`: 1,024 random archs of that space on 50,000 made-up images, without racing, raced by default, and
  halved on rungs of 1,000 and 5,000 images, on which a quarter goes on.
* `race_supernets`: evolutions of 120 archs on supernets of three families, trained on `mnist5k` and scored on 8,000
  distorted images of its search split. precision.py uses the same supernets.

An arch has an image right with the probability 1 / (1 + exp(-s (ability - difficulty))), independently of all others.
The difficulties have a logistic distribution around a centre. Scale and centre are such that an arch of ability 0 has
75 % of the images right, and two such archs differ on a share `unequal` of the images. The ability of an arch is a
random function of its genes and of pairs of them, with a standard deviation of `spread` (in accuracy) over random
archs. That errors are independent is the worst case: what subnets of a supernet have in common makes racing cheaper.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from tasks import FAMILIES, Row, Task, distorted_scorer, run_tasks

from raynas.search.history import Cut
from raynas.search.racing import CONSERVATIVE_ERROR, ERROR, race

EXPERIMENTS = ("race_simulated", "race_error", "halve_simulated", "race_supernets")
SETTINGS = ("off", "conservative", "default")
CLASSES = 400  # of difficulty, among which the images are shared


class MadeUp:
    """A scorer of archs on made-up images; scores are kept."""

    def __init__(self, space: Any, images: int, unequal: float, spread: float, seed: int):
        self.space, self.image_count = space, images
        rng = np.random.default_rng(seed)
        self._scale, self._centre, self._slope = model(unequal)
        self._difficulty = rng.logistic(self._centre, 1, CLASSES)
        self._class = rng.integers(CLASSES, size=images)
        drawn = space.sample_codes(np.random.default_rng(0), 2000)
        genes, choices = drawn.shape[1], int(drawn.max()) + 2
        self._single = np.sort(rng.normal(0, 1, (genes, choices)), axis=1) + rng.normal(0, 0.5, (genes, choices))
        self._pairs = rng.integers(genes, size=(2 * genes, 2))
        self._joint = rng.normal(0, 0.5, (2 * genes, choices, choices))
        values = self._value(drawn)
        self._mean, self._deviation, self._spread = values.mean(), values.std() / spread, spread
        self._seed = seed
        self._known: dict[Any, np.ndarray] = {}

    def _value(self, codes: np.ndarray) -> np.ndarray:
        codes = codes + 1  # inactive genes are -1
        first, second = codes[:, self._pairs[:, 0]], codes[:, self._pairs[:, 1]]
        joint = self._joint[np.arange(len(self._pairs)), first, second].sum(axis=1)
        return self._single[np.arange(codes.shape[1]), codes].sum(axis=1) + joint

    def correct(self, arch: Any) -> np.ndarray:
        if arch.id not in self._known:
            ability = (self._value(self.space.encode([arch]))[0] - self._mean) / self._deviation / self._slope
            right = 1 / (1 + np.exp(-self._scale * (ability - self._difficulty)))
            draws = np.random.default_rng([self._seed, int(arch.id, 16)]).integers(
                65536, size=self.image_count, dtype=np.uint16
            )
            self._known[arch.id] = draws < (right * 65535).astype(np.uint16)[self._class]
        return self._known[arch.id]

    def score_block(self, archs: Sequence[Any], first: int, last: int) -> list[np.ndarray]:
        return [self.correct(arch)[first:last] for arch in archs]

    def score(self, archs: Sequence[Any]) -> list[Row]:
        whole = {"status": "ok", "images": self.image_count}
        return [{"arch": arch.id, "accuracy": float(self.correct(arch).mean()), **whole} for arch in archs]


@lru_cache
def model(unequal: float, accuracy: float = 0.75) -> tuple[float, float, float]:
    """Scale and centre of the difficulties, and the accuracy that one of ability adds."""
    from scipy.optimize import brentq

    places = (np.arange(100_001) + 0.5) / 100_001
    logistic = np.log(places / (1 - places))

    def right(scale: float, centre: float) -> np.ndarray:
        return 1 / (1 + np.exp(scale * np.clip(logistic + centre, -50 / scale, 50 / scale)))

    def centre_of(scale: float) -> float:
        return float(brentq(lambda centre: right(scale, centre).mean() - accuracy, -20, 20))

    def differing(scale: float) -> float:
        chances = right(scale, centre_of(scale))
        return float((2 * chances * (1 - chances)).mean())

    scale = float(brentq(lambda scale: differing(scale) - unequal, 1.0, 100.0))
    chances = right(scale, centre_of(scale))
    return scale, centre_of(scale), float((scale * chances * (1 - chances)).mean())


def raced(search: Any, scorer: Any, racing: str, how: dict[str, Any] | None = None) -> Row:
    """What a search comes to: its winner's accuracy on all images, and the share of the evaluations that it took."""
    from raynas.search import run_search

    run_search(search, scorer, **(how or {"racing": racing}))
    images = [scorer.image_count if row.stopped is None else row.stopped.images for row in search.history]
    (best,) = scorer.score([search.best()])
    return {
        "racing": racing,
        "archs": len(images),
        "stopped": sum(row.stopped is not None for row in search.history),
        "share": float(np.mean(images) / scorer.image_count),
        "winner": best["arch"],
        "accuracy": best["accuracy"],
        "order": [row.arch.id for row in search.history],
    }


def compared(rows: list[Row]) -> list[Row]:
    """Rows with the regret against the first, which is without racing, and how much of the search was the same."""
    whole = rows[0]
    for row in rows:
        row["regret"] = whole["accuracy"] - row["accuracy"]
        row["same_archs"] = float(row["order"] == whole["order"])
        row["same_winner"] = float(row["winner"] == whole["winner"])
    return [{name: value for name, value in row.items() if name != "order"} for row in rows]


def simulated(unequal: float, spread: float, seed: int) -> list[Row]:
    import raynas

    space = raynas.load_space("autoformer/tiny")
    scorer = MadeUp(space, 50_000, unequal, spread, seed)
    searches = [raynas.Evolution(space, constraints={"params": (None, 6e6)}, seed=seed) for _ in SETTINGS]
    return compared([raced(search, scorer, racing) for search, racing in zip(searches, SETTINGS, strict=True)])


def halved(unequal: float, spread: float, seed: int) -> list[Row]:
    import raynas
    from raynas.search import Rung

    space = raynas.load_space("autoformer/tiny")
    scorer = MadeUp(space, 50_000, unequal, spread, seed)
    rungs = [Rung(images=1000, keep=0.25), Rung(images=5000, keep=0.25)]
    settings: dict[str, Any] = {"off": {}, "default": {"racing": "default"}, "rungs": {"rungs": rungs}}
    rows = []
    for name, how in settings.items():
        search = raynas.RandomSearch(space, constraints={"params": (None, 6e6)}, seed=seed, evaluations=1024)
        rows.append(raced(search, scorer, name, {"batch": 1024, **how}))
    return compared(rows)


class Plain:
    """An evolution of nothing but abilities, of which a thousand take minutes: a child is near a parent."""

    def __init__(self, seed: int, population: int = 20, parents: int = 4, generations: int = 4):
        self.objectives = SimpleNamespace(names=["accuracy"], scored=["accuracy"])
        self.budget = population * (1 + generations)
        self._rng, self._population, self._places = np.random.default_rng(seed), population, parents
        self.whole: list[tuple[float, Number]] = []
        self.asked: list[float] = []

    def cut(self) -> Cut:
        best: list[Any] = [arch for _, arch in self._best()]
        return Cut(self._places, best)

    def _best(self) -> list[tuple[float, Number]]:
        return sorted(self.whole, key=lambda pair: (-pair[0], pair[1].id))[: self._places]

    def ask(self) -> list[Number]:
        if not self.asked:
            abilities = self._rng.normal(0, 0.02, self._population)
        else:
            parents = np.array([arch.ability for _, arch in self._best()])
            abilities = self._rng.choice(parents, self._population) + self._rng.normal(-0.006, 0.012, self._population)
        archs = [Number(len(self.asked) + place, float(ability)) for place, ability in enumerate(abilities)]
        self.asked += abilities.tolist()
        return archs if len(self.asked) <= self.budget else []


class Number(NamedTuple):
    id: int
    ability: float


class PlainImages:
    """A scorer of plain archs."""

    def __init__(self, images: int, unequal: float, seed: int):
        self.image_count, self._seed = images, seed
        self._scale, centre, self._slope = model(unequal)
        self.known: dict[Number, np.ndarray] = {}
        self._difficulty = np.random.default_rng([seed, 1]).logistic(centre, 1, images)

    def correct(self, arch: Number) -> np.ndarray:
        right = 1 / (1 + np.exp(-self._scale * (arch.ability / self._slope - self._difficulty)))
        return np.random.default_rng([self._seed, 2, arch.id]).random(self.image_count) < right

    def score_block(self, archs: Sequence[Number], first: int, last: int) -> list[np.ndarray]:
        for arch in archs:
            if arch not in self.known:
                self.known[arch] = self.correct(arch)
        return [self.known[arch][first:last] for arch in archs]

    def score(self, archs: Sequence[Number]) -> list[Row]:
        return [
            {"status": "ok", "accuracy": float(bits.mean()), "arch": arch}
            for arch, bits in zip(archs, self.score_block(archs, 0, self.image_count), strict=True)
        ]


def error(seed: int) -> list[Row]:
    """Fifty plain searches with each setting: which archs with a place were stopped."""
    rows = []
    for number in range(50 * seed, 50 * seed + 50):
        for racing in SETTINGS[1:]:
            search: Any = Plain(number)
            scorer: Any = PlainImages(3_000, 0.05, number)
            limit = CONSERVATIVE_ERROR / search.budget if racing == "conservative" else ERROR
            wrong = stopped = images = places = 0
            while archs := search.ask():
                told = race(search, archs, scorer, limit)
                out = {arch for arch, row in zip(archs, told, strict=True) if row["status"] == "stopped"}
                every = [(float(scorer.known[arch].mean()), arch) for arch in archs]
                best = sorted([*search.whole, *every], key=lambda pair: (-pair[0], pair[1].id))[:4]
                new = {arch for _, arch in best} & set(archs)
                wrong, places, stopped = wrong + len(new & out), places + len(new), stopped + len(out)
                images += sum(row.get("images", scorer.image_count) for row in told)
                search.whole += [pair for pair in every if pair[1] not in out]
            rows.append(
                {
                    "number": number,
                    "racing": racing,
                    "archs": search.budget,
                    "places": places,
                    "wrong": wrong,
                    "stopped": stopped,
                    "share": images / search.budget / scorer.image_count,
                }
            )
    return rows


class Known:
    """A scorer that scores an arch on all images when it is first asked for a block of it."""

    def __init__(self, scorer: Any):
        self._scorer, self.image_count = scorer, scorer.image_count
        self.correct: dict[Any, np.ndarray] = {}

    def score_block(self, archs: Sequence[Any], first: int, last: int) -> list[np.ndarray]:
        new = [arch for arch in archs if arch not in self.correct]
        blocks = self._scorer.score_block(new, 0, self.image_count) if new else []
        self.correct.update(zip(new, blocks, strict=True))
        return [self.correct[arch][first:last] for arch in archs]

    def score(self, archs: Sequence[Any]) -> list[Row]:
        self.score_block(archs, 0, 0)
        return self._scorer.score(archs)


def supernets(family: str, seed: int) -> list[Row]:
    """Evolutions on a supernet, on distorted images of its search split."""
    import raynas

    options: Any = {"population": 20, "parents": 4, "mutations": 10, "crossovers": 10, "generations": 5, "seed": seed}
    with distorted_scorer(family, seed, copies=10, batch_size=500) as scorer:
        space = scorer.space
        known = Known(scorer)  # each arch is scored once for all settings
        found = [raced(raynas.Evolution(space, **options), known, racing) for racing in SETTINGS]
    accuracies = [float(bits.mean()) for bits in known.correct.values()]
    pairs = np.array(list(known.correct.values()))[:20]
    about = {
        "lowest": min(accuracies),
        "highest": max(accuracies),
        "unequal": float(np.mean([(one != other).mean() for one, other in itertools.combinations(pairs, 2)])),
    }
    return [{**row, **about} for row in compared(found)]


def tasks(experiment: str) -> Iterator[Task]:
    if experiment == "race_simulated":
        for seed in range(20):
            for unequal, spread in ((0.05, 0.015), (0.07, 0.01)):
                yield Task("race_simulated", simulated, {"unequal": unequal, "spread": spread}, seed)
    elif experiment == "race_error":
        for seed in range(20):
            yield Task("race_error", error, {}, seed)
    elif experiment == "halve_simulated":
        for seed in range(20):
            for unequal, spread in ((0.05, 0.015), (0.07, 0.01)):
                yield Task("halve_simulated", halved, {"unequal": unequal, "spread": spread}, seed)
    elif experiment == "race_supernets":
        for seed in range(3):
            for family in FAMILIES:
                yield Task("race_supernets", supernets, {"family": family}, seed)


if __name__ == "__main__":
    run_tasks(__doc__, EXPERIMENTS, tasks)
