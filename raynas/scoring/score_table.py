"""The rows of table `scores` for one supernet, data and precision: look-up and writing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa

from raynas.costs import cost
from raynas.costs.columns import named
from raynas.data.calibration import Calibration
from raynas.results.blocks import Blocks
from raynas.results.proxies import PROXY_SEED, proxy_values
from raynas.results.schemas import SCHEMAS, Row
from raynas.results.store import Store, having
from raynas.results.versions import versions_text
from raynas.results.writer import Writer
from raynas.scoring.score_arch import Job, ProxyScore, Score
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.search.racing import racing_order
from raynas.space import Arch, Space


@dataclass(frozen=True)
class ScoredArch:
    """The result of a job: a score or what a proxy found, or the reason why there is none."""

    job: Job
    result: Score | ProxyScore | None
    reason: str | None
    device: str
    replica: str

    @property
    def arch(self) -> Arch:
        """The job's arch."""
        return self.job.arch

    @property
    def score(self) -> Score | None:
        """The score, on all images or on a block; None if it failed, or of a proxy."""
        return self.result if isinstance(self.result, Score) else None


class ScoreTable:
    """Scores under one key; new ones are known at once, and stored in the background in the order of their commits.

    The key is everything that a score depends on: arch, weights, space (for its constants), data, number of images,
    precision and calibration images. Batch size, threads and device only change rounding, and are recorded.

    Args:
        store: the run's tables; None keeps rows in memory only.
        precision, batch_size: options of scoring.
    """

    def __init__(self, store: Store | None, scored: ScoredSupernet, precision: str, batch_size: int):
        self._store = store
        self._writer = None if store is None else Writer(store)
        self._space = scored.space
        self._key: Row = {
            "supernet": scored.weights,
            "space": scored.space.fingerprint,
            "data": scored.data,
            "images": len(scored.images),
            "precision": precision,
            **calibration_columns(scored.calibration),
        }
        self._same: Row = {
            **self._key,
            "batch_size": batch_size,
            "seed": scored.seed,
        }
        self._blocks: Blocks | None = None  # read when something is raced
        self._proxies: dict[str, dict[str, float]] = {}  # training-free scores by name, then arch
        self._new: dict[str, Row] = {}
        self._read: pa.Table | None = None
        self._where: dict[str, int] = {}
        self._with_bits: set[str] = set()
        if store is not None:
            ours = having(self._key)
            self._read = store.read("scores", filter=ours).combine_chunks()  # rows are looked up one by one
            self._where = {arch: index for index, arch in enumerate(self._read["arch"].to_pylist())}
            # A driver that was killed between the two writes has left bits without a score; they are not written twice.
            self._with_bits = set(store.read("correct", ["arch"], ours)["arch"].to_pylist())

    def __len__(self) -> int:
        return len(self._where) + len(self._new)

    def find(self, arch: str) -> Row | None:
        """Return the row of an arch id, None if it has not been scored."""
        if arch in self._new:
            return dict(self._new[arch])
        if arch in self._where and self._read is not None:
            return self._read.slice(self._where[arch], 1).to_pylist()[0]
        return None

    def commit(self, outcomes: Sequence[ScoredArch]) -> list[Row]:
        """Make scores known, and write their rows in the background; proxies are left out.

        Returns:
            The rows of table `scores`: of whole scores, and of archs that failed.

        Raises:
            RunDirError: earlier rows cannot be written.
        """
        scored = [outcome for outcome in outcomes if outcome.job.proxy is None]
        self._commit_blocks([each for each in scored if each.score is not None and each.job.block is not None])
        return self._commit_whole([each for each in scored if each.score is None or each.job.block is None])

    def _commit_whole(self, outcomes: Sequence[ScoredArch]) -> list[Row]:
        each_once: dict[str, ScoredArch] = {}
        for outcome in outcomes:
            each_once.setdefault(outcome.arch.id, outcome)
        outcomes = [outcome for arch, outcome in each_once.items() if self.find(arch) is None]
        costs = macs_and_params([o.arch for o in outcomes])
        now = datetime.now(timezone.utc)
        rows = [
            {**self._row(outcome), "macs": macs, "params": params, "time": now}
            for outcome, (macs, params) in zip(outcomes, costs, strict=True)
        ]
        if self._writer is not None:
            bits = [o for o in outcomes if o.score is not None and o.arch.id not in self._with_bits]
            self._with_bits.update(o.arch.id for o in bits)
            # Scores last: with them the scores are there.
            self._writer.append(("correct", [self._bits(outcome) for outcome in bits]), ("scores", rows))
        self._new.update({row["arch"]: row for row in rows})
        return [dict(row) for row in rows]

    def flush(self) -> None:
        """Wait until all rows are written.

        Raises:
            RunDirError: they cannot be written.
        """
        if self._writer is not None:
            self._writer.flush()

    def end(self) -> None:
        """Write the rows that are still to be written."""
        if self._writer is not None:
            self._writer.end()

    def look_up(self, archs: Sequence[str]) -> None:
        """Read the blocks of archs that are to be raced, and their whole scores."""
        if self._blocks is None:
            self._blocks = Blocks(self._store, self._key, racing_order(self._key["images"]))
        if unknown := self._blocks.unknown([arch for arch in archs if arch in self._with_bits]):
            self.flush()
            self._blocks.read_whole(unknown)

    def knows_block(self, arch: str, first: int, last: int) -> bool:
        """Return True if a block of an arch need not be scored: it is known, or the arch has failed."""
        row = self.find(arch)
        return (row is not None and row["status"] == "failed") or self.block(arch, first, last) is not None

    def block(self, arch: str, first: int, last: int) -> np.ndarray | None:
        """Return the correctness of an arch on a block, bool [last - first]; None if it is unknown."""
        assert self._blocks is not None
        return self._blocks.find(arch, first, last)

    def _commit_blocks(self, outcomes: Sequence[ScoredArch]) -> None:
        if not outcomes:
            return
        assert self._blocks is not None
        rows = [self._block_row(outcome) for outcome in outcomes]
        if self._writer is not None:
            self._writer.append(("blocks", rows))
        self._blocks.add(rows)

    def complete(self, archs: Sequence[Arch]) -> None:
        """Commit the whole scores of archs whose blocks are all known.

        Raises:
            RunDirError: earlier rows cannot be written.
        """
        assert self._blocks is not None
        blocks = {arch: self._blocks.rows(arch.id) for arch in archs if self.find(arch.id) is None}
        self.commit([_joined(arch, rows) for arch, rows in blocks.items() if rows is not None])

    def proxies(self, by: str) -> dict[str, float]:
        """Return the known training-free scores of one kind, by arch id."""
        if by not in self._proxies:
            about = {name: self._key[name] for name in ("space", "data", "images")}
            self._proxies[by] = {} if self._store is None else proxy_values(self._store, by, about)
        return self._proxies[by]

    def commit_proxies(self, by: str, scored: Sequence[tuple[Arch, float, ProxyScore]]) -> None:
        """Make training-free scores known, and write them in the background.

        Args:
            by: their kind.
            scored: each arch with its score, and what that was made of.

        Raises:
            RunDirError: earlier rows cannot be written.
        """
        if self._writer is not None:
            about = {name: self._key[name] for name in ("space", "data", "images")}
            about |= {"by": by, "seed": PROXY_SEED}
            rows = [
                {**about, **named(arch), "value": value, "seconds": of.seconds, "device": of.device}
                for arch, value, of in scored
            ]
            self._writer.append(("proxies", rows))
        self.proxies(by).update({arch.id: value for arch, value, _ in scored})

    def _begun(self, table: str, outcome: ScoredArch) -> Row:
        """Return a row of a table with what is known of any outcome, failed ones included."""
        row: Row = dict.fromkeys(SCHEMAS[table].names)
        row |= {**self._same, **named(outcome.arch)}
        return row | {"device": outcome.device, "replica": outcome.replica, "versions": versions_text()}

    def _block_row(self, outcome: ScoredArch) -> Row:
        score, block = outcome.score, outcome.job.block
        assert score is not None and block is not None
        first, last = block
        return self._begun("blocks", outcome) | {
            "first": first,
            "last": last,
            "accuracy": float(score.top1.mean()),
            "loss": score.loss,
            "top1": np.packbits(score.top1).tobytes(),
            "top5": None if score.top5 is None else np.packbits(score.top5).tobytes(),
            "seconds": score.seconds,
            "calibration_seconds": score.calibration_seconds,
            "time": datetime.now(timezone.utc),
        }

    def _row(self, outcome: ScoredArch) -> Row:
        score, row = outcome.score, self._begun("scores", outcome)
        if score is None:
            return row | {"status": "failed", "reason": outcome.reason}
        return row | {
            "status": "ok",
            "accuracy": float(score.top1.mean()),
            "top5": None if score.top5 is None else float(score.top5.mean()),
            "loss": score.loss,
            "seconds": score.seconds,
            "calibration_seconds": score.calibration_seconds,
        }

    def _bits(self, outcome: ScoredArch) -> Row:
        score = outcome.score
        assert score is not None
        return {
            **self._key,
            "arch": outcome.arch.id,
            "seed": self._same["seed"],
            "device": outcome.device,
            "top1": np.packbits(score.top1).tobytes(),
            "top5": None if score.top5 is None else np.packbits(score.top5).tobytes(),
        }


def calibration_columns(calibration: Calibration | None) -> Row:
    """Return the columns of calibration images, null without calibration."""
    values = {} if calibration is None else calibration.config.model_dump()
    return {f"calibration_{name}": values.get(name) for name in ("images", "batch_size", "seed")}


def macs_and_params(archs: Sequence[Arch]) -> list[tuple[int, int]]:
    """Return MACs and parameters of archs, each in its own space: off the grid it is another one."""
    by_space: dict[Space, list[int]] = {}
    for index, arch in enumerate(archs):
        by_space.setdefault(arch.space, []).append(index)
    found = [(0, 0)] * len(archs)
    for space, indices in by_space.items():
        counted = cost(space, [archs[index] for index in indices])
        for index, macs, params in zip(indices, counted["macs"], counted["params"], strict=True):
            found[index] = (int(macs), int(params))
    return found


def _joined(arch: Arch, rows: Sequence[Row]) -> ScoredArch:
    """Return the whole score of an arch from all its blocks in order."""
    order = racing_order(rows[-1]["last"])

    def bits(column: str) -> np.ndarray | None:
        if rows[0][column] is None:
            return None
        packed = [(np.frombuffer(row[column], dtype=np.uint8), row["last"] - row["first"]) for row in rows]
        found = np.empty(len(order), dtype=bool)
        found[order] = np.concatenate([np.unpackbits(each, count=count) for each, count in packed])
        return found

    top1 = bits("top1")
    assert top1 is not None
    loss = sum(row["loss"] * (row["last"] - row["first"]) for row in rows) / len(order)
    calibrations = [row["calibration_seconds"] for row in rows if row["calibration_seconds"] is not None]
    seconds = sum(row["seconds"] for row in rows)
    score = Score(top1, bits("top5"), loss, seconds, sum(calibrations) if calibrations else None)
    return ScoredArch(Job(arch), score, None, rows[-1]["device"], rows[-1]["replica"])
