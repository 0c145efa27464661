"""Scoring in this process, without Ray: for debugging, tests and small machines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from raynas.data.calibration import Calibration
from raynas.errors import reason
from raynas.results import RunDir, Store
from raynas.scoring.replica import WeightsChanged, device_name
from raynas.scoring.score_arch import PixelStatistics, score_arch
from raynas.scoring.score_table import ScoredArch
from raynas.scoring.scored_supernet import ScoredSupernet, make_scored_supernet
from raynas.scoring.scorer import COMMIT_ROWS, COMMIT_S, Scorer
from raynas.scoring.shared_weights import changed, checksums, take_apart
from raynas.space import Arch, Space


class LocalScorer(Scorer):
    """Scores one arch after the other in this process; the same interface and the same rows as `ScorePool`.

    Args:
        run: a run directory with a trained supernet.
        batch_size: images in one forward pass.
        threads: torch threads while it scores, for the same rounding everywhere.
        images: so many images of the search split; all where left out.
        precision: fp32, or bf16 or fp16 by autocast.
        device: where it runs: `cpu`, `cuda`, `cuda:1`.

    Raises:
        UserError: an argument makes no sense.
        RunDirError: `run` is not a run directory.
    """

    def __init__(
        self,
        run: RunDir | str | os.PathLike[str] | None,
        batch_size: int = 256,
        threads: int = 1,
        images: int | None = None,
        precision: str = "fp32",
        device: str = "cpu",
        *,
        subject: ScoredSupernet | None = None,
        store: Store | None = None,
    ):
        super().__init__(run, subject, store, batch_size, images, precision)
        self.threads = threads
        self.device = torch.device(device)

    @classmethod
    def from_parts(
        cls,
        space: Space,
        supernet: nn.Module,
        images: Tensor,
        labels: Tensor,
        statistics: PixelStatistics | None = None,
        store: Store | None = None,
        batch_size: int = 256,
        threads: int = 1,
        precision: str = "fp32",
        device: str = "cpu",
        calibration: Calibration | None = None,
    ) -> LocalScorer:
        """A scorer of a supernet and images at hand (see `subject_of_parts`); rows stay in memory without a store."""
        subject = make_scored_supernet(space, supernet, images, labels, statistics, calibration=calibration)
        return cls(None, batch_size, threads, None, precision, device, subject=subject, store=store)

    def _start(self, subject: ScoredSupernet) -> None:
        self._supernet = subject.supernet.to(self.device)
        self._pixels = subject.images.to(self.device)
        self._labels = subject.labels.to(self.device)
        self._statistics = subject.statistics
        self._calibration = None if subject.calibration is None else subject.calibration.batches.to(self.device)
        self._sums = checksums(take_apart(self._supernet)[1])

    def _finish(self) -> None:
        names = changed(take_apart(self._supernet)[1], self._sums)
        if names:
            raise WeightsChanged(names)

    def _outcomes(self, archs: Iterator[Arch]) -> Iterator[list[ScoredArch]]:
        finished: list[ScoredArch] = []
        began = time.monotonic()
        for arch in archs:
            finished.append(self._outcome(arch))
            if len(finished) >= COMMIT_ROWS or time.monotonic() - began > COMMIT_S:
                yield finished
                finished, began = [], time.monotonic()
        yield finished

    def _outcome(self, arch: Arch) -> ScoredArch:
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        score, why = None, None
        try:
            score = score_arch(
                self._supernet,
                arch,
                self._pixels,
                self._labels,
                self._statistics,
                self.batch_size,
                self.precision,
                self._calibration,
            )
        except Exception as error:  # whatever an arch does to a network, the search goes on without it
            why = reason(error)
        finally:
            torch.set_num_threads(threads)
        return ScoredArch(arch, score, why, device_name(self.device), "local")
