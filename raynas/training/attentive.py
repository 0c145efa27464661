"""AttentiveNAS's sampling: candidates from one cost bucket, and the best or the worst of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pydantic
from pydantic import Field

from raynas.config import Config, validate
from raynas.costs import COSTS, cost, sample_within, span
from raynas.documents import Document
from raynas.errors import InfeasibleError
from raynas.space import Arch, Codes, Space
from raynas.space.codes import Uniform
from raynas.text import nearest, shown

_DRAWN, _BATCHES = 256, 20
"""Archs drawn at a time, and the number of times, before a cost window is made for a rare bucket."""

_EMPTY = 1000
"""Consecutive empty buckets before sampling gives up, far more than any space has."""


class Attentive(Config):
    """Options for the choice of random subnets.

    Attributes:
        bucket: a cost and the width of its buckets, such as `{macs: 25.0e+6}`. All candidates for one subnet come from
            the same bucket, so that they have about the same cost.
        odds: choice of the bucket: `archs`, the bucket of a random arch (AttentiveNAS), or `equal` for equal
            probabilities of all non-empty buckets.
        candidates: number of candidates for each subnet. They are compared by their losses on the step's first
            micro-batch, without gradients, which costs a forward pass each.
        choose: the `best` (lowest loss, AttentiveNAS's BestUp) or the `worst` (WorstUp) candidate.
    """

    bucket: dict[str, float] | None = None
    odds: Literal["archs", "equal"] = "archs"
    candidates: int = Field(default=1, ge=1, le=100)
    choose: Literal["best", "worst"] | None = None

    @pydantic.field_validator("bucket")
    @classmethod
    def _one_cost(cls, bucket: dict[str, float] | None) -> dict[str, float] | None:
        if bucket is None:
            return None
        for name, width in bucket.items():
            if name not in COSTS:
                raise ValueError(f"no cost {shown(name)}{nearest(name, COSTS)}")
            if len(bucket) > 1 or not width >= 1:
                raise ValueError("give one cost with the width of its buckets, such as {macs: 25.0e+6}")
        return bucket or None

    @pydantic.model_validator(mode="after")
    def _does_something(self) -> Attentive:
        if (self.candidates > 1) != (self.choose is not None):
            raise ValueError("candidates (more than one) and choose (best or worst) go together")
        if self.odds == "equal" and self.bucket is None:
            raise ValueError("odds: equal is of buckets: give bucket, such as {macs: 25.0e+6}")
        if self.candidates == 1 and self.odds == "archs":
            raise ValueError("nothing is chosen so: give candidates and choose, or a bucket with odds: equal")
        return self


def read_attentive(value: Any) -> Attentive:
    """Read the option of a sampler; the message about a wrong value says why."""
    return value if isinstance(value, Attentive) else validate(Attentive, Document(value, "attentive"))


def draw_attentively(
    space: Space,
    rng: np.random.Generator,
    losses: Callable[[Sequence[Arch]], list[float]],
    n: int,
    option: Attentive | dict[str, Any],
    uniform_over: Uniform = "dimensions",
) -> list[Arch]:
    """Draw n random archs, each chosen among its own candidates.

    Args:
        losses: see `raynas.training.samplers.Losses`; called once for all candidates.

    Raises:
        ConfigError: the option is wrong.
    """
    attentive = read_attentive(option)
    groups = [space.decode(_candidates(space, rng, attentive, uniform_over)) for _ in range(n)]
    if attentive.choose is None or not groups:
        return [group[0] for group in groups]
    found = np.reshape(losses([arch for group in groups for arch in group]), (n, attentive.candidates))
    places = found.argmin(axis=1) if attentive.choose == "best" else found.argmax(axis=1)
    return [group[place] for group, place in zip(groups, places, strict=True)]


def _candidates(space: Space, rng: np.random.Generator, attentive: Attentive, uniform_over: Uniform) -> Codes:
    """Draw the candidates for one subnet, as codes [candidates, dimensions]."""
    wanted = attentive.candidates
    if attentive.bucket is None:
        return space.sample_codes(rng, wanted, uniform_over)
    ((name, width),) = attentive.bucket.items()
    if attentive.odds == "archs":  # the bucket of a random arch, which is also the first candidate
        first = space.sample_codes(rng, 1, uniform_over)
        bucket = int(cost(space, first)[name][0] // width)
        return np.concatenate([first, _in_bucket(space, rng, name, width, bucket, wanted - 1, uniform_over)])
    least, greatest = span(space)[name]
    for _ in range(_EMPTY):
        bucket = int(rng.integers(int(least // width), int(greatest // width) + 1))
        try:
            return _in_bucket(space, rng, name, width, bucket, wanted, uniform_over)
        except InfeasibleError:
            continue  # an empty bucket
    raise InfeasibleError(f"attentive: no bucket of {name} with archs was found: give wider ones than {width:g}")


def _in_bucket(
    space: Space, rng: np.random.Generator, name: str, width: float, bucket: int, n: int, uniform_over: Uniform
) -> Codes:
    """Draw n random archs of a bucket: by rejection or, if they are rare, from a cost window."""
    found = [space.sample_codes(rng, 0, uniform_over)]
    for _ in range(_BATCHES):
        if sum(map(len, found)) >= n:
            return np.concatenate(found)[:n]
        codes = space.sample_codes(rng, _DRAWN, uniform_over)
        found.append(codes[cost(space, codes)[name] // width == bucket])
    low, high = bucket * width, np.nextafter((bucket + 1) * width, 0)
    return sample_within(space, {name: (low, high)}, rng, n, uniform_over)
