"""Parts of the search tests: small spaces, made-up accuracies, scorers, and searches of a user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raynas.costs import cost
from raynas.space import Arch, Codes, Space


def vit(**dimensions: Any) -> Space:
    """A vit space for 8x8 images."""
    blocks = {"heads": [1, 2, 3], "mlp_ratio": [1.0, 2.0], **dimensions.pop("blocks", {})}
    chosen = {"patch_size": [2], "width": [16, 24, 32], "depth": [1, 2], **dimensions, "blocks": blocks}
    return Space.from_dict(
        {
            "family": "vit",
            "input": {"size": 8, "channels": 1},
            "classes": 10,
            "constants": {"head_dim": 8},
            "dimensions": chosen,
        },
        "small",
    )


def accuracy(arch: Mapping[str, Any]) -> float:
    """A made-up accuracy without ties: every gene helps a little, heads more in later blocks, and ids add noise."""
    value = 0.5 + 0.002 * arch["width"] + 0.02 * arch["depth"]
    for name, choice in arch.items():
        if name.endswith("heads"):
            value += 0.02 * choice * (1 + int(name.split(".")[1]))
        elif name.endswith("mlp_ratio"):
            value += 0.01 * choice
    assert isinstance(arch, Arch)
    return value + 0.02 * int(hashlib.sha256(arch.id.encode()).hexdigest()[:8], 16) / 2**32


def drive(search: Any, score: Callable[[Arch], Any] = accuracy, piece: int = 1000) -> list[Arch]:
    """Run a search to its end, `piece` archs at a time; the archs in the order asked."""
    asked = []
    while archs := search.ask(piece):
        asked += archs
        search.tell(archs, [score(arch) for arch in archs])
    return asked


def front_of(archs: Sequence[Arch], high: float = np.inf) -> set[Arch]:
    """Those with at most `high` MACs that no other beats in accuracy and MACs, by the definition."""
    macs = cost(archs[0].space, archs)["macs"]
    points = [(accuracy(a), m, a) for a, m in zip(archs, macs, strict=True) if m <= high]
    return {
        arch
        for value, size, arch in points
        if not any((v >= value and m <= size) and (v > value or m < size) for v, m, _ in points)
    }


def oracle(space: Space, codes: Codes, values: np.ndarray, seed: int) -> Callable[[Codes], np.ndarray]:
    """A predictor of the made-up accuracies that is always right."""
    return lambda codes: np.array([accuracy(arch) for arch in space.decode(codes)])


def hypervolume(archs: Sequence[Arch], high: float) -> float:
    """Area under the staircase of accuracy against MACs, between 0 accuracy and `high` MACs."""
    macs = cost(archs[0].space, archs[0].space.encode(archs))["macs"]
    area, best, points = 0.0, 0.0, sorted(zip(macs, map(accuracy, archs), strict=True))
    for (size, value), following in zip(points, [*(m for m, _ in points[1:]), high], strict=True):
        best = max(best, value)
        area += best * (following - size)
    return area


class Scorer:
    """A scorer that answers from its rows where it has them, and fails, or is killed, on demand."""

    def __init__(self, rows: dict[str, dict[str, Any]] | None = None, dies_after: int | None = None):
        self.rows = {} if rows is None else rows
        self.dies_after = dies_after
        self.computed: list[str] = []

    def row(self, arch: Arch) -> dict[str, Any]:
        """One row, computed at most once."""
        if arch.id not in self.rows:
            if len(self.computed) == self.dies_after:
                raise KeyboardInterrupt
            self.computed.append(arch.id)
            self.rows[arch.id] = {"arch": arch.id, "accuracy": accuracy(arch), "status": "ok"}
        return self.rows[arch.id]

    def score(self, archs: Sequence[Arch]) -> list[dict[str, Any]]:
        return [self.row(arch) for arch in archs]


class StreamingScorer(Scorer):
    """Rows come in an order of their own."""

    def score_iter(self, archs: Sequence[Arch]) -> Iterator[dict[str, Any]]:
        for arch in sorted(archs, key=lambda arch: arch.id):
            yield self.row(arch)


class TwoMethods:
    """A user's search: nothing but ask and tell."""

    def __init__(self, space: Space, objectives: Any, constraints: Any, seed: int, steps: int = 3):
        self.space, self.rng, self.steps = space, np.random.default_rng(seed), steps
        self.told: list[Any] = []

    def ask(self, n: int) -> list[Arch]:
        if self.steps == 0:
            return []
        self.steps -= 1
        return [self.space.sample(self.rng) for _ in range(2)]

    def tell(self, archs: Sequence[Arch], scores: Sequence[Any]) -> None:
        self.told += zip(archs, scores, strict=True)


def not_a_search(space: Space, objectives: Any, constraints: Any, seed: int) -> dict[str, int]:
    return {"ask": 1}
