"""A search loop around a ScorePool by hand, as a program that can be killed: hand_written_search.py RUN OUT."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import raynas
from raynas.search import PredictorEvolution
from raynas.space import Arch, Space


class Climber:
    """The user's own ask/tell object: random archs first, then mutants of the best so far."""

    def __init__(self, space: Space, limit: int):
        self.space, self.limit = space, limit
        self.rng = np.random.default_rng(0)
        self.told: list[tuple[float, Arch]] = []

    def ask(self, n: int) -> list[Arch]:
        archs: list[Arch] = []
        while len(archs) < n:
            arch = self.space.sample(self.rng)
            if self.told:
                arch = self.space.mutate(max(self.told, key=lambda pair: pair[0])[1], self.rng, 0.3)
            if raynas.cost(self.space, [arch])["macs"][0] <= self.limit:
                archs.append(arch)
        return archs

    def tell(self, archs: Sequence[Arch], scores: Sequence[dict[str, Any]]) -> None:
        self.told += [(score["accuracy"], arch) for score, arch in zip(scores, archs, strict=True)]


def climb(scorer: Any) -> dict[str, Any]:
    """Eight rounds of ten by the user's own search and of ten by a predictor; the best arch, the front, and all told.

    The predictor proposes archs from the third round on.
    """
    climber = Climber(scorer.space, limit=1_500_000)
    evolution = {"initial": 40, "mutations": 10, "crossovers": 10, "generations": 3}
    options: dict[str, Any] = {"samples": 20, "held_out": 8, "verify": 20, "least_tau": -1, "evolution": evolution}
    predicted = PredictorEvolution(scorer.space, {"accuracy": "max", "macs": "min"}, evaluations=80, **options)
    for _ in range(8):
        for search in (climber, predicted):
            archs = search.ask(10)
            search.tell(archs, scorer.score(archs))
        print("round", flush=True)
    best = max(climber.told, key=lambda pair: pair[0])
    told = [[arch.id, accuracy] for accuracy, arch in climber.told]
    told += [[row.arch.id, row.objectives and row.objectives["accuracy"]] for row in predicted.history]
    return {"best": [best[1].id, best[0]], "front": [row.arch.id for row in predicted.front()], "history": told}


def main(run: str, out: str) -> None:
    with raynas.ScorePool(run, replicas=2) as pool:
        Path(out).write_text(json.dumps(climb(pool)))


if __name__ == "__main__":
    main(*sys.argv[1:])
