"""Scoring in this process, without Ray: for debugging, tests and small machines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch

from raynas.arguments import checked
from raynas.data.held import held
from raynas.nets.device import device_there, threads
from raynas.results import Store
from raynas.runs.run import Run
from raynas.scoring.replica import WeightsChanged, device_name
from raynas.scoring.score_arch import BATCH, ArchScorer, Job
from raynas.scoring.score_table import ScoredArch
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.scoring.scorer import COMMIT_ROWS, COMMIT_S, Scorer
from raynas.scoring.shared_weights import changed, checksums, take_apart


class LocalScorer(Scorer):
    """A scorer in this process, one arch after the other, with the interface and the rows of `ScorePool`.

    Args:
        run: a run directory with a trained supernet.
        batch_size: images in one forward pass.
        threads: torch threads while it scores, for the same rounding everywhere.
        images: number of images of the search split; by default all.
        precision: fp32, or bf16 or fp16 by autocast.
        device: `cpu`, `cuda` or `cuda:1`.

    Raises:
        UserError: an argument is out of range.
        RunDirError: `run` is not a run directory.
    """

    @checked()
    def __init__(
        self,
        run: Run | str | os.PathLike[str] | None,
        batch_size: int = BATCH,
        threads: int = 1,
        images: int | None = None,
        precision: str = "fp32",
        device: str | torch.device = "cpu",
        *,
        scored: ScoredSupernet | None = None,
        store: Store | None = None,
    ):
        super().__init__(run, scored, store, batch_size, images, precision)
        self.threads = threads
        self.device = device_there(device)

    def _start(self, scored: ScoredSupernet) -> None:
        self._scorer = ArchScorer(
            self.device,
            scored.supernet,
            [held(scored.images)],
            torch.from_numpy(scored.images.labels),
            scored.normalisation,
            self.batch_size,
            self.precision,
            None if scored.calibration is None else scored.calibration.batches,
        )
        self._sums = checksums(take_apart(self._scorer.supernet)[1])

    def _finish(self) -> None:
        names = changed(take_apart(self._scorer.supernet)[1], self._sums)
        if names:
            raise WeightsChanged(names)

    def _outcomes(self, jobs: Iterator[Job | None]) -> Iterator[list[ScoredArch]]:
        finished: list[ScoredArch] = []
        began = time.monotonic()
        for job in jobs:
            if job is not None:
                finished.append(self._outcome(job))
            if job is None or len(finished) >= COMMIT_ROWS or time.monotonic() - began > COMMIT_S:
                yield finished
                finished, began = [], time.monotonic()
        yield finished

    def _outcome(self, job: Job) -> ScoredArch:
        with threads(self.threads):
            score, why = self._scorer.score(job)
        return ScoredArch(job, score, why, device_name(self.device), "local")
