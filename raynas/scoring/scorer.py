"""What both scorers share: known rows, duplicates, rows before answers, order."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

from raynas.errors import UserError
from raynas.results import RunDir, Store
from raynas.results.schemas import Row
from raynas.scoring.score_table import ScoredArch, ScoreTable
from raynas.scoring.scored_supernet import ScoredSupernet, load_scored_supernet
from raynas.space import Arch, Space
from raynas.text import shown

log = logging.getLogger(__name__)

COMMIT_ROWS = 64  # finished archs that are written together,
COMMIT_S = 1.0  # or those of so many seconds
ScorerT = TypeVar("ScorerT", bound="Scorer")


class Scorer:
    """Scores archs of one supernet on one set of images; a context manager.

    Inside it this process owns the run directory. Every row is in the store before it is returned, and what is there is
    answered without computing.
    """

    def __init__(
        self,
        run: RunDir | str | os.PathLike[str] | None,
        subject: ScoredSupernet | None,
        store: Store | None,
        batch_size: int,
        images: int | None,
        precision: str,
    ):
        from raynas.scoring.score_arch import check_precision

        check_precision(precision)
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {batch_size}")
        self.run = None if run is None else RunDir(run)
        self.batch_size = batch_size
        self.precision = precision
        self._images = images
        self._subject = subject
        self._store = store
        self._ledger: ScoreTable | None = None
        self._stack = ExitStack()

    # -- what a scorer implements ------------------------------------------------------------------------------------

    def _start(self, subject: ScoredSupernet) -> None:
        """Get ready; what is to be undone goes on `self._stack`."""
        raise NotImplementedError

    def _finish(self) -> None:
        """After work that went well: prove that nothing was written to."""
        raise NotImplementedError

    def _outcomes(self, archs: Iterator[Arch]) -> Iterator[list[ScoredArch]]:
        """Score archs, pulled as there is room for them; groups of outcomes as they finish."""
        raise NotImplementedError

    # -- the interface -----------------------------------------------------------------------------------------------

    def __enter__(self: ScorerT) -> ScorerT:
        with ExitStack() as stack:
            if self.run is not None:
                stack.enter_context(self.run.lock())
                self._store = self.run.store
            subject = self._subject
            if subject is None:
                assert self.run is not None
                subject = load_scored_supernet(self.run, self._images)
            self._stack = stack
            self._start(subject)
            self._space = subject.space
            self._ledger = ScoreTable(self._store, subject, self.precision, self.batch_size)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ledger = None
        if kind is not None:
            self._stack.__exit__(kind, error, trace)  # Ray may have been lost, which is then the error
            return
        with self._stack:
            self._finish()

    @property
    def space(self) -> Space:
        """The space of the supernet; known inside the context."""
        self._entered()
        return self._space

    def score(self, archs: Iterable[Arch | Mapping[str, Any]]) -> list[Row]:
        """Rows of table `scores`, one for each arch in the order given; equal archs are computed once.

        An arch that cannot be scored has a row too: `status` failed, `accuracy` None, and the `reason`.

        Raises:
            RunDirError: rows cannot be written.
            UserError: an arch has other constants than the supernet's space (see `Space.check_own`), or the cluster has
                no room for a replica.
        """
        asked = [self._arch(arch) for arch in archs]
        rows = {row["arch"]: row for row in self.score_iter(asked)}
        return [dict(rows[arch.id]) for arch in asked]

    def score_iter(self, archs: Iterable[Arch | Mapping[str, Any]]) -> Iterator[Row]:
        """The same rows as they finish, one for each arch; `archs` may be endless and is pulled as there is room."""
        ledger = self._entered()
        ready: deque[Row] = deque()
        waiting: dict[str, int] = {}

        def unknown() -> Iterator[Arch]:
            for given in archs:
                arch = self._arch(given)
                row = ledger.find(arch.id)
                if row is not None:
                    ready.append(row)
                elif arch.id in waiting:
                    waiting[arch.id] += 1
                else:
                    waiting[arch.id] = 1
                    yield arch

        for outcomes in self._outcomes(unknown()):
            for row in ledger.commit(outcomes):
                if row["status"] == "failed":
                    log.warning("arch %s cannot be scored: %s", row["arch"], row["reason"])
                ready.extend([row] * waiting.pop(row["arch"], 0))
            while ready:
                yield ready.popleft()
        yield from ready

    def _entered(self) -> ScoreTable:
        if self._ledger is None:
            raise UserError(
                f"a {type(self).__name__} is used in a with block: with {type(self).__name__}(run) as pool:"
            )
        return self._ledger

    def _arch(self, arch: Arch | Mapping[str, Any]) -> Arch:
        space = self.space
        if not isinstance(arch, Mapping):
            raise UserError(f"expected an arch, or a mapping of its values, found {shown(arch)}; score takes a list")
        if not isinstance(arch, Arch):
            return space.arch(arch)
        if arch.space.fingerprint == space.fingerprint:
            return arch
        space.check_own(arch)
        # With other choices, such as a published one off the grid: counted as what this supernet makes of it.
        return space.arch(arch) if arch in space else space.off_grid(arch)
