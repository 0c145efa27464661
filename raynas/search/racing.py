"""Racing: archs are scored in blocks of images, and those that cannot reach the search's cut are stopped early.

All archs see the images in one fixed shuffled order. The cut is set by archs whose scores on all images are known, the
holders of the search's places. On every image a bet is made that an arch misses the cut: its correctness, less the mean
correctness of the holders on this image (which says how hard it is), is compared with the mean that it would need on
the images that are left. If the arch is in truth as good as the cut, the bets do not win in the long run: the capital
exceeds 1 / error at any time with a probability of at most `error` (Ville's inequality). This is the confidence
sequence of Waudby-Smith and Ramdas (2020) for sampling without replacement, tested at one value.

A race ends sooner with a high cut. So after a look at the first images the leaders are scored on all images before the
others go on, and the best of them are holders, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, get_args

import numpy as np

from raynas.errors import UserError
from raynas.search.history import History
from raynas.search.objectives import non_dominated
from raynas.space import Arch

Racing = Literal["off", "conservative", "default"]
"""Settings of racing; `error_of` gives the probability of a wrong stop."""

ERROR, CONSERVATIVE_ERROR = 0.2, 0.05
"""Largest probability of stopping an arch that is as good as the cut: of each arch, and of any arch of a search."""

FIRST_ROUND, LEAST_ROUND, GROWTH = 1 / 64, 64, 1.25
"""Share and least number of images in the first round, and ratio of the images after a round to those before it."""

LOOK = 1 / 16
"""Share of the images after which the leaders are chosen."""

_FIRST_BET = 0.25
"""Bet of the first round; the best one for an arch that is behind by a quarter of the variance of the differences."""


class BlockScorer(Protocol):
    """A scorer of archs in blocks of images."""

    @property
    def image_count(self) -> int:
        """Number of images of a whole score."""
        ...

    def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
        """Return the correctness, bool [last - first], on places of `racing_order`; None for an arch that fails."""
        ...

    def score(self, archs: Sequence[Arch]) -> list[dict[str, Any]]:
        """Return rows of scores on all images, without computing if all blocks of an arch are scored."""
        ...


def racing_order(images: int) -> np.ndarray:
    """Return the order in which races go through the images, a permutation [images]; always the same."""
    return np.random.default_rng(0).permutation(images)


def round_ends(images: int) -> list[int]:
    """Return the numbers of images after each round, ascending; the last is all images."""
    ends, end = [], max(LEAST_ROUND, math.ceil(images * FIRST_ROUND))
    while end < images:
        ends.append(end)
        end = math.ceil(end * GROWTH)
    return [*ends, images]


def error_of(racing: Racing, search: Any) -> float:
    """Return the largest probability with which an arch that is as good as the cut is stopped in a search.

    A conservative search shares its error among all archs of its budget.

    Raises:
        UserError: there is no such setting, the search has no rule for it, or its objectives are not the accuracy alone
            or with costs.
    """
    if racing not in get_args(Racing):
        raise UserError(f"racing is {racing!r}: give one of {', '.join(get_args(Racing))}")
    check_stoppable(search, "racing")
    if racing == "default":
        return ERROR
    budget = getattr(search, "budget", None)
    if budget is None:
        raise UserError("conservative racing shares its error among the archs of a search: give evaluations")
    return CONSERVATIVE_ERROR / budget


def check_stoppable(search: Any, how: str) -> None:
    """Check that archs of a search may be stopped early.

    Args:
        how: the setting that stops them, for the message.

    Raises:
        UserError: the search has no cut, or its objectives are not the accuracy alone or with costs.
    """
    name = type(search).__name__
    if not isinstance(search, History) or search.cut() is None:
        raise UserError(
            f"{how}: {name} learns from every score, so that no arch may be stopped early; do without {how}, or "
            "search by evolution, nsga2, pareto (without buckets) or random"
        )
    objectives = search.objectives
    if objectives.scored != ["accuracy"] or objectives.directions["accuracy"] != "max":
        raise UserError(f"{how}: archs are compared by their accuracy: give the objective accuracy: max, beside costs")


def race(
    search: History,
    archs: Sequence[Arch],
    scorer: BlockScorer,
    error: float,
    done: Callable[[float], None] = lambda archs: None,
) -> list[dict[str, Any]]:
    """Score archs of a search, except for those that are certain to miss its cut.

    Whether an arch is stopped depends only on the search so far, on `archs` and on the correctness of predictions.

    Args:
        archs: archs that were asked together.
        scorer: scorer of all images.
        error: see `error_of`.
        done: called after each round with the number of archs that need no more images; an arch under way counts by
            its share of the images.

    Returns:
        A row for each arch: that of the scorer for archs with all images (and failed ones), or for a stopped arch its
        `arch`, `status` stopped, `accuracy` so far and number of `images` so far.
    """
    contest = _Contest(search, archs, scorer, error, done)
    ends = round_ends(scorer.image_count)
    rounds = list(zip([0, *ends], ends, strict=False))
    look = sum(last < LOOK * scorer.image_count for _, last in rounds) + 1
    running = contest.run(np.arange(len(archs)), rounds[:look])
    leaders, others = contest.split(running)
    contest.add_holders(contest.run(leaders, rounds[look:]), seen=rounds[look - 1][1])
    contest.run(others, rounds[look:])
    return contest.rows()


class _Contest:
    """A race of archs: their correctness so far, the holders, and who was stopped or failed."""

    def __init__(
        self,
        search: History,
        archs: Sequence[Arch],
        scorer: BlockScorer,
        error: float,
        done: Callable[[float], None],
    ):
        cut = search.cut()
        assert cut is not None
        self._archs, self._scorer, self._places = list(archs), scorer, cut.places
        self._done = done
        self._images = scorer.image_count
        self._costs = cost_objectives(search, [*archs, *cut.holders])
        self._holders = list(range(len(archs), len(archs) + len(cut.holders)))  # indices into costs
        self._correct = np.zeros((len(archs), self._images), dtype=bool)
        self._of_holders = dict(zip(self._holders, _whole(scorer, cut.holders), strict=True))
        self._seen = np.zeros(len(archs), dtype=int)
        self._bets = Bets(self._correct, error)
        self._stopped, self._failed = np.zeros((2, len(archs)), dtype=bool)
        self._pair(seen=0)

    def run(self, running: np.ndarray, rounds: Sequence[tuple[int, int]]) -> np.ndarray:
        """Score archs in rounds, and return the indices of those that were not stopped and did not fail."""
        for first, last in rounds:
            if not len(running):
                break
            blocks = self._scorer.score_block([self._archs[index] for index in running], first, last)
            good = np.array([block is not None for block in blocks])
            self._failed[running[~good]] = True
            running = running[good]
            self._correct[running, first:last] = [block for block in blocks if block is not None]
            self._seen[running] = last
            if last < self._images:
                lost = self._bets.lost(running, first, last)
                self._stopped[running[lost]] = True
                running = running[~lost]
            self._done(float(np.where(self._stopped | self._failed, 1.0, self._seen / self._images).sum()))
        return running

    def split(self, running: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the leaders so far, as many as there are places, and the others."""
        order = leaders(self._correct[running].sum(axis=1), self._costs[running])
        return running[order[: self._places]], np.sort(running[order[self._places :]])

    def add_holders(self, finished: np.ndarray, seen: int) -> None:
        """Let archs with all images set the cut, too, for archs that have seen a number of images."""
        self._of_holders |= {int(index): self._correct[index] for index in finished}
        self._holders += finished.tolist()
        self._pair(seen)

    def rows(self) -> list[dict[str, Any]]:
        """Return the row of each arch, in order."""
        scored = iter(
            self._scorer.score([arch for arch, out in zip(self._archs, self._stopped, strict=True) if not out])
        )
        return [
            _stopped_row(arch, self._correct[index, : self._seen[index]]) if self._stopped[index] else next(scored)
            for index, arch in enumerate(self._archs)
        ]

    def _pair(self, seen: int) -> None:
        """Pair archs with the most accurate holders, and set the cut of each: to be ranked among the places.

        The cut is the best accuracy of holders that are no dearer and on the last front that the places need. With one
        objective, that is the least accuracy with a place.
        """
        if len(self._holders) < self._places:
            return
        correct = np.array([self._of_holders[holder] for holder in self._holders])
        right = correct.sum(axis=1)
        last = np.array(self._holders)[_last_front(np.column_stack([-right, self._costs[self._holders]]), self._places)]
        rivals = np.array([self._of_holders[holder].sum() for holder in last])
        no_dearer = _no_dearer(self._costs[last], self._costs[: len(self._archs)])
        cuts = np.where(no_dearer, rivals[:, None], -2 * self._images).max(axis=0)
        best = np.argsort(-right, kind="stable")[: self._places]
        self._bets.pair(correct[best].mean(axis=0), cuts, seen)


class Bets:
    """Bets that archs miss their cuts.

    Args:
        correct: correctness of the archs, bool [archs, images] in racing order; filled in by the caller.
        error: see `error_of`.
    """

    def __init__(self, correct: np.ndarray, error: float):
        self._correct, self._enough = correct, -math.log(error)
        self._capital = np.zeros(len(correct))  # in nats
        self._cuts: np.ndarray | None = None

    def pair(self, typical: np.ndarray, cuts: np.ndarray, seen: int) -> None:
        """Set the cuts for the images to come; they may not become lower.

        Args:
            typical: mean correctness of the holders [images].
            cuts: least number of images [archs] that each arch must have right; negative for none.
            seen: number of images so far.
        """
        self._typical, self._cuts = typical, cuts
        self._left = np.cumsum(typical[::-1])[::-1]  # sum from each image on
        self._right = self._correct[:, :seen].sum(axis=1)
        differences = self._correct[:, :seen] - typical[:seen]
        self._sum, self._squares = differences.sum(axis=1), np.square(differences).sum(axis=1)

    def lost(self, archs: np.ndarray, first: int, last: int) -> np.ndarray:
        """Bet on a block; return True for each arch [archs] that misses its cut."""
        if self._cuts is None:
            return np.zeros(len(archs), dtype=bool)
        block, images = self._correct[archs, first:last].astype(np.float64), len(self._typical)
        before = np.cumsum(block, axis=1) - block + self._right[archs, None]
        differences = block - self._typical[first:last]
        # Mean difference on this and all later images if the arch just reaches its cut.
        needed = (self._cuts[archs, None] - before - self._left[first:last]) / (images - np.arange(first, last))
        bets = np.minimum(self._bet(archs, first, needed[:, :1]), 0.5 / np.maximum(1 - needed, 1e-9))
        bets[needed < -1] = 0  # it reaches its cut, even if it has no more images right
        gains = np.log1p(bets * (needed - differences))
        gains[needed > 1 + 1e-9] = np.inf  # it does not, even if it has all others right
        self._capital[archs] += gains.sum(axis=1)
        self._right[archs] += self._correct[archs, first:last].sum(axis=1)
        self._sum[archs] += differences.sum(axis=1)
        self._squares[archs] += np.square(differences).sum(axis=1)
        return np.asarray(self._capital[archs] >= self._enough)

    def _bet(self, archs: np.ndarray, seen: int, needed: np.ndarray) -> np.ndarray:
        """Return the share of the capital [archs, 1] that makes it grow fastest if later images are like those seen."""
        if seen == 0:
            return np.full_like(needed, _FIRST_BET)
        mean = self._sum[archs, None] / seen
        variance = np.maximum(self._squares[archs, None] / seen - mean**2, 1 / seen)
        behind = np.maximum(needed - mean, 0)
        return np.asarray(behind / (variance + behind**2))


def leaders(values: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the indices of archs by the number of others that are better and no dearer, ascending; equals in order.

    Args:
        values: the larger the better [archs].
        costs: the smaller the better [archs, costs].
    """
    beaten = (values[:, None] > values) & _no_dearer(costs, costs)
    return np.argsort(beaten.sum(axis=0), kind="stable")


def _no_dearer(those: np.ndarray, than: np.ndarray) -> np.ndarray:
    """Return True where costs [those, costs] are no higher than others [than, costs], bool [those, than]."""
    return np.asarray((those[:, None] <= than).all(axis=2))


def _last_front(minimised: np.ndarray, places: int) -> np.ndarray:
    """Return the indices of the front that has the last place, if places are filled front by front."""
    left = np.arange(len(minimised))
    while True:
        front = non_dominated(minimised[left])
        if front.sum() >= places or front.all():
            return left[front]
        places -= front.sum()
        left = left[~front]


def cost_objectives(search: History, archs: Sequence[Arch]) -> np.ndarray:
    """Return the objectives that are costs, signed so that smaller is better, float64 [archs, costs]."""
    if search.objectives.names == search.objectives.scored or not archs:
        return np.zeros((len(archs), 0))
    return search.objectives.minimised_costs(search.constraints.costs(search.space.encode(archs)))


def _whole(scorer: BlockScorer, archs: Sequence[Arch]) -> list[np.ndarray]:
    blocks = scorer.score_block(archs, 0, scorer.image_count) if archs else []
    return [block for block in blocks if block is not None]


def _stopped_row(arch: Arch, correct: np.ndarray) -> dict[str, Any]:
    return {"arch": arch.id, "status": "stopped", "accuracy": float(correct.mean()), "images": len(correct)}
