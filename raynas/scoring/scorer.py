"""Base of both scorers: known rows, duplicates, order, writing in the background."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from raynas.data.calibration import Calibration
from raynas.data.pixels import Normalisation
from raynas.errors import UserError
from raynas.progress.reporter import Progress, reporter, silent
from raynas.proxies.az_nas import combined
from raynas.proxies.scorer import IN_PARTS, check_proxy, reference_archs
from raynas.results import Store
from raynas.results.proxies import PROXY_SEED
from raynas.results.schemas import Row
from raynas.runs.run import Run
from raynas.scoring.score_arch import Averages, Job, ProxyScore, check_precision
from raynas.scoring.score_table import ScoredArch, ScoreTable
from raynas.scoring.scored_supernet import ScoredSupernet, from_tensors, load_scored_supernet
from raynas.search.config import SCORED
from raynas.space import Arch, Space
from raynas.text import shown

log = logging.getLogger(__name__)

COMMIT_ROWS = 64  # finished archs after which rows are written,
COMMIT_S = 1.0  # or seconds
REPEATS = 1000  # archs in a row that need no job, after which those that have finished are yielded
ScorerT = TypeVar("ScorerT", bound="Scorer")


class Scorer:
    """A scorer of archs of one supernet on one set of images; a context manager.

    Inside the context this process holds the lock of the run directory. Rows are stored in the background, so that
    scoring never waits for a slow store: `score` returns when those that it made are stored, and `flush` and the end
    of the context wait for those of `score_iter` and `score_block`. Stored rows are returned without computing.

    Attributes:
        objectives: names in its rows by which a search can go, besides costs.
    """

    objectives = SCORED

    def __init__(
        self,
        run: Run | str | os.PathLike[str] | None,
        scored: ScoredSupernet | None,
        store: Store | None,
        batch_size: int,
        images: int | None,
        precision: str,
    ):
        check_precision(precision)
        if batch_size < 1:
            raise UserError(f"batch_size must be at least 1, not {batch_size}")
        self.run = None if run is None else Run(run)
        self.batch_size = batch_size
        self.precision = precision
        self._images = images
        self._scored = scored
        self._store = store
        self._table: ScoreTable | None = None
        self._averages: dict[str, Averages] = {}  # batch-norm statistics of raced archs, by id
        self._references: dict[str, list[dict[str, float]]] = {}  # parts of a proxy's reference archs, by its name
        self._stack = ExitStack()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'a supernet in memory' if self.run is None else self.run})"

    @classmethod
    def from_parts(
        cls: type[ScorerT],
        space: Space,
        supernet: nn.Module,
        images: Tensor,
        labels: Tensor,
        normalisation: Normalisation | None = None,
        store: Store | None = None,
        calibration: Calibration | None = None,
        **options: Any,
    ) -> ScorerT:
        """Return a scorer of a supernet and images in memory, see `from_tensors`.

        Without a store its rows stay in memory. The workers of a pool must be able to import the supernet's class.
        `options` are the constructor's.
        """
        scored = from_tensors(space, supernet, images, labels, normalisation, calibration)
        return cls(run=None, scored=scored, store=store, **options)

    # -- implemented by each scorer ----------------------------------------------------------------------------------

    def _start(self, scored: ScoredSupernet) -> None:
        """Prepare for scoring, and put clean-up on `self._stack`."""
        raise NotImplementedError

    def _finish(self) -> None:
        """Check, after successful work, that weights and images have not changed."""
        raise NotImplementedError

    def _outcomes(self, jobs: Iterator[Job | None]) -> Iterator[list[ScoredArch]]:
        """Do jobs, taken from the iterator as there is room, and yield groups of finished ones.

        None in place of a job: there is none now, but more may come; a group, perhaps empty, is yielded soon.
        """
        raise NotImplementedError

    # -- the interface -----------------------------------------------------------------------------------------------

    def __enter__(self: ScorerT) -> ScorerT:
        with ExitStack() as stack:
            if self.run is not None:
                stack.enter_context(self.run.lock())
                self._store = self.run.store
            scored = self._scored
            if scored is None:
                assert self.run is not None
                scored = load_scored_supernet(self.run, self._images)
            self._stack = stack
            self._start(scored)
            self._space, self._image_count = scored.space, len(scored.images)
            self._table = ScoreTable(self._store, scored, self.precision, self.batch_size)
            stack.callback(self._table.end)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        table, self._table = self._table, None
        if kind is not None or table is None:
            self._stack.__exit__(kind, error, trace)  # Ray may have been lost, which is then the error
            return
        with self._stack:
            table.flush()
            self._finish()

    @property
    def space(self) -> Space:
        """The supernet's space; only inside the context."""
        self._entered()
        return self._space

    @property
    def image_count(self) -> int:
        """Number of images that archs are scored on; only inside the context."""
        self._entered()
        return self._image_count

    def score(
        self, archs: Iterable[Arch | Mapping[str, Any]], progress: Progress = silent, what: str = "scoring"
    ) -> list[Row]:
        """Return rows of table `scores`, one for each arch in the given order; equal archs are computed once.

        An arch that cannot be scored also has a row: `status` failed, `accuracy` None, and the `reason`.

        Args:
            archs: archs of the supernet's space, or their values.
            progress: called with lines that begin with `what`: how many are scored, and the time left.

        Raises:
            RunDirError: rows cannot be written.
            UserError: an arch has other constants than the supernet's space, or no replica fits into the cluster.
        """
        asked = [self._arch(arch) for arch in (archs if isinstance(archs, Iterable) else [archs])]
        rows: dict[str, Row] = {}
        known = len(self._entered())
        with reporter(progress).doing(what, len({arch.id for arch in asked}), "subnets scored") as activity:
            for row in self.score_iter(asked):
                rows[row["arch"]] = row
                activity.update(len(rows))
        if len(self._entered()) > known:
            self.flush()
        return [dict(rows[arch.id]) for arch in asked]

    def score_iter(self, archs: Iterable[Arch | Mapping[str, Any]]) -> Iterator[Row]:
        """Yield the same rows as they finish; `archs` may be endless, and is read only as there is room.

        Rows are stored in the background, in this order.
        """
        table = self._entered()
        ready: deque[Row] = deque()
        waiting: dict[str, int] = {}

        def unknown() -> Iterator[Job | None]:
            repeats = 0
            for given in archs:
                arch = self._arch(given)
                repeats += 1
                row = table.find(arch.id)
                if row is not None:
                    ready.append(row)
                elif arch.id in waiting:
                    waiting[arch.id] += 1
                else:
                    waiting[arch.id], repeats = 1, 0
                    yield Job(arch)
                if repeats == REPEATS:
                    repeats = 0
                    yield None

        for outcomes in self._outcomes(unknown()):
            for row in table.commit(outcomes):
                if row["status"] == "failed":
                    log.warning("arch %s cannot be scored: %s", row["arch"], row["reason"])
                ready.extend([row] * waiting.pop(row["arch"], 0))
            while ready:
                yield ready.popleft()
        yield from ready

    def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
        """Return the correctness of archs on a block of images; see `raynas.search.racing.BlockScorer`.

        Blocks are stored in the background, and whole scores when their last block is there. An arch is calibrated once
        for all its blocks, and once more after the process was ended.

        Raises:
            RunDirError: earlier rows cannot be written.
            UserError: there is no such block.
        """
        table = self._entered()
        numbers = all(isinstance(bound, int | np.integer) for bound in (first, last))
        if not numbers or not 0 <= first < last <= self._image_count:
            told = f"not from {shown(first)} to {shown(last)}"
            raise UserError(f"a block of images is from 0 or more to {self._image_count:,} or fewer, {told}")
        asked = {arch.id: arch for arch in map(self._arch, archs)}
        table.look_up(list(asked))
        if first == 0:  # another race
            self._averages = {}
        unknown = (arch for arch in asked.values() if not table.knows_block(arch.id, first, last))
        for outcomes in self._outcomes(Job(arch, (first, last), self._averages.get(arch.id)) for arch in unknown):
            table.commit(outcomes)
            scores = {outcome.arch.id: outcome.score for outcome in outcomes if outcome.job.block is not None}
            new = {name: score.averages for name, score in scores.items() if score is not None and score.averages}
            self._averages.update(new)
        if last == self._image_count:
            table.complete(list(asked.values()))
        return [table.block(self._arch(arch).id, first, last) for arch in archs]

    def score_proxy(self, archs: Sequence[Arch], by: str) -> list[float]:
        """Return training-free scores of archs, see `raynas.proxies.scorer.PROXIES`; NaN of one that has none.

        They are stored in the background, and stored scores are returned without computing.

        Raises:
            RunDirError: earlier rows cannot be written.
            UserError: there is no such score.
        """
        table = self._entered()
        check_proxy(by)
        asked = [self._arch(arch) for arch in archs]
        known = table.proxies(by)
        unknown = [arch for arch in dict.fromkeys(asked) if arch.id not in known]
        if unknown and by in IN_PARTS and by not in self._references:
            groups = list(self._find(reference_archs(self._space, PROXY_SEED), by))
            self._references[by] = [of.found for group in groups for _, of in group if isinstance(of.found, dict)]
        for group in self._find(unknown, by):
            scored = [
                (arch, combined(of.found, self._references[by]) if isinstance(of.found, dict) else of.found, of)
                for arch, of in group
            ]
            table.commit_proxies(by, scored)
        return [known[arch.id] for arch in asked]

    def _find(self, archs: Sequence[Arch], by: str) -> Iterator[list[tuple[Arch, ProxyScore]]]:
        """Compute a proxy of archs, and yield groups of what it found: NaN if it cannot be computed."""
        table, asked = self._entered(), set(archs)
        for outcomes in self._outcomes(Job(arch, proxy=by) for arch in archs):
            table.commit(outcomes)  # an abandoned call may have left some, or other proxies
            group = []
            for outcome in outcomes:
                if outcome.job.proxy != by or outcome.arch not in asked:
                    continue
                if not isinstance(of := outcome.result, ProxyScore):
                    log.warning("arch %s has no %s: %s", outcome.arch.id, by, outcome.reason)
                    of = ProxyScore(math.nan, 0.0, outcome.device)
                group.append((outcome.arch, of))
            yield group

    def flush(self) -> None:
        """Wait until every row that was returned is stored.

        Raises:
            RunDirError: they cannot be written.
        """
        self._entered().flush()

    def _entered(self) -> ScoreTable:
        if self._table is None:
            raise UserError(
                f"a {type(self).__name__} is used in a with block: with {type(self).__name__}(run) as pool:"
            )
        return self._table

    def _arch(self, arch: Arch | Mapping[str, Any]) -> Arch:
        space = self.space
        if not isinstance(arch, Mapping):
            raise UserError(f"expected an arch, or a mapping of its values, found {shown(arch)}; score takes a list")
        if not isinstance(arch, Arch):
            return space.arch(arch)
        if arch.space.fingerprint == space.fingerprint:
            return arch
        space.check_own(arch)
        # An arch of other choices, such as a published one off the grid, is scored as this supernet's subnet.
        return space.arch(arch) if arch in space else space.off_grid(arch)
