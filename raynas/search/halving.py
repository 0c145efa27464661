"""Successive halving (Jamieson and Talwalkar, 2016): cheap judges first, each of which lets a share of the archs go on.

Archs that are asked together climb rungs. The judge of a rung is a training-free score, or the accuracy on some of the
images. The best share goes on, the others are stopped. Those that are left are scored on all images, and only these
scores count: an arch that was stopped is never a parent or the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from pydantic import Field, model_validator

from raynas.config import Config
from raynas.errors import UserError
from raynas.search.history import History
from raynas.search.racing import BlockScorer, Racing, check_stoppable, cost_objectives, error_of, leaders, race
from raynas.space import Arch

Judge = Literal["accuracy", "params", "macs", "synflow", "naswot", "dss", "az_nas"]
"""Accuracy with inherited weights, or a training-free score."""

Scored = Callable[[Sequence[Arch], Any, Callable[[float], None]], list[dict[str, Any]]]
"""Scores archs by a scorer, stopping some early; called with `done`, see `race`."""


class Rung(Config):
    """A rung of successive halving.

    Attributes:
        by: the judge: `accuracy` on some images, or a training-free score (the larger the better).
        images: number of images for `accuracy`, the first in the shuffled order of races; more than on the rung before.
        keep: share of the archs that go on, rounded up.
    """

    by: Judge = "accuracy"
    images: int | None = Field(None, ge=1, le=10**7)
    keep: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _images_for_accuracy(self) -> Rung:
        if self.by == "accuracy" and self.images is None:
            raise ValueError("give the number of images, or a training-free score: by")
        if self.by != "accuracy" and self.images is not None:
            raise ValueError(f"images: {self.by} needs none: leave it out")
        return self


class RungScorer(BlockScorer, Protocol):
    """A scorer of archs in blocks of images, and by training-free scores."""

    def score_proxy(self, archs: Sequence[Arch], by: str) -> list[float]:
        """Return the training-free score of each arch."""
        ...


def check_rungs(rungs: Sequence[Rung], batch: int, images: int | None = None) -> None:
    """Check that each rung has more images than the one before, whole scores more than all, and that each stops archs.

    Args:
        batch: number of archs that compete with one another.
        images: number of images of whole scores; None if it is not known yet.

    Raises:
        UserError: a rung has not, or it would let all of a batch go on.
    """
    counts = [rung.images for rung in rungs if rung.images is not None]
    for before, after in pairwise(counts):
        if after <= before:
            raise UserError(f"rungs: {after:,} images after {before:,}: give each rung more than the one before")
    if images is not None and counts and counts[-1] >= images:
        raise UserError(f"rungs: {counts[-1]:,} images, and whole scores have {images:,}: give fewer")
    left = batch
    for number, rung in enumerate(rungs, start=1):
        before, left = left, going_on(rung, left)
        if left == before:
            raise UserError(
                f"rungs: of a batch of {batch:,}, {before:,} reach rung {number}, which lets them all go on: "
                "give a larger batch, or a smaller keep"
            )


def going_on(rung: Rung, archs: int) -> int:
    """Return how many of the archs on a rung go on."""
    return max(1, math.ceil(rung.keep * archs - 1e-9))  # a product may be just above a whole number


def early_stops(search: Any, racing: Racing = "off", rungs: Sequence[Rung] = ()) -> Scored | None:
    """Return how archs of a search are scored if some are stopped early, by racing or on rungs; None if none are.

    Raises:
        UserError: the search has no rule for it, see `error_of`, or both are asked for.
    """
    if rungs:
        if racing != "off":
            raise UserError("rungs and racing both stop archs early: use one of them")
        check_stoppable(search, "rungs")
        return partial(halve, search, rungs=rungs)
    if racing == "off":
        return None
    error = error_of(racing, search)
    return lambda archs, scorer, done: race(search, archs, scorer, error, done)


def ask_together(search: Any, n: int) -> list[Arch]:
    """Return the next n archs of a search, of several generations if it does not learn from scores."""
    archs: list[Arch] = list(search.ask(n))
    while archs and len(archs) < n and not search.learns and (more := search.ask(n - len(archs))):
        archs += more
    return archs


def halve(
    search: History,
    archs: Sequence[Arch],
    scorer: RungScorer,
    done: Callable[[float], None] = lambda archs: None,
    *,
    rungs: Sequence[Rung],
) -> list[dict[str, Any]]:
    """Score archs of a search on rungs, then those that are left on all images.

    With several objectives, archs are ranked by the number of others that are better and no dearer. Equals are ranked
    in the order in which they were asked. Which archs go on depends only on the archs and on what the judges say.

    Args:
        archs: archs that were asked together.
        done: called after each rung with the number of archs that need no more images.

    Returns:
        A row for each arch: that of the scorer for archs with all images (and failed ones), or for a stopped arch its
        `arch`, `status` stopped, the judge that stopped it (`by`), `accuracy` so far (None before there are images)
        and the number of `images` so far.
    """
    costs, seen = cost_objectives(search, archs), 0
    right = np.zeros(len(archs), dtype=int)
    stopped: dict[int, dict[str, Any]] = {}
    running, failed = np.arange(len(archs)), 0
    for rung in rungs:
        asked = [archs[index] for index in running.tolist()]
        if rung.images is None:
            values = np.nan_to_num(scorer.score_proxy(asked, rung.by), nan=-np.inf)
        else:
            blocks = scorer.score_block(asked, seen, rung.images)
            good = np.array([block is not None for block in blocks], dtype=bool)
            running, seen = running[good], rung.images
            right[running] += np.array([block.sum() for block in blocks if block is not None], dtype=int)
            failed, values = failed + int((~good).sum()), right[running] / seen
        ranked = running[leaders(values, costs[running])]
        kept = going_on(rung, len(ranked))
        for index in ranked[kept:].tolist():
            so_far = {"accuracy": float(right[index] / seen) if seen else None, "images": seen}
            stopped[index] = {"arch": archs[index].id, "status": "stopped", "by": rung.by, **so_far}
        running = np.sort(ranked[:kept])
        done(len(stopped) + failed)
    if seen:
        scorer.score_block([archs[index] for index in running.tolist()], seen, scorer.image_count)
    whole = iter(scorer.score([arch for index, arch in enumerate(archs) if index not in stopped]))
    return [stopped.get(index) or next(whole) for index in range(len(archs))]
