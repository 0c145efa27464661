"""The rows of table `scores` for one supernet, data and precision: look-up and writing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raynas.costs import cost
from raynas.data.calibration import Calibration
from raynas.results import Store
from raynas.results.schemas import SCHEMAS, Row
from raynas.results.versions import versions_text
from raynas.scoring.score_arch import Score
from raynas.scoring.scored_supernet import ScoredSupernet
from raynas.space import Arch, Space


@dataclass(frozen=True)
class ScoredArch:
    """The result of scoring one arch: a score, or the reason why there is none."""

    arch: Arch
    score: Score | None
    reason: str | None
    device: str
    replica: str


class ScoreTable:
    """Scores under one key; new ones are stored before they can be looked up.

    The key is everything that a score depends on: arch, weights, space (for its constants), data, number of images,
    precision and calibration images. Batch size, threads and device only change rounding, and are recorded.

    Args:
        store: the run's tables; None keeps rows in memory only.
        precision, batch_size: options of scoring.
    """

    def __init__(self, store: Store | None, scored: ScoredSupernet, precision: str, batch_size: int):
        self._store = store
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
        self._new: dict[str, Row] = {}
        self._read: pa.Table | None = None
        self._where: dict[str, int] = {}
        self._with_bits: set[str] = set()
        if store is not None:
            ours = pc.scalar(True)
            for name, value in self._key.items():
                field = pc.field(name)
                ours = ours & (field.is_null() if value is None else field == value)
            self._read = store.read("scores", filter=ours)
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
        """Write the rows of scored archs, then make them known and return them.

        Raises:
            RunDirError: they cannot be written.
        """
        outcomes = [o for i, o in enumerate(outcomes) if self.find(o.arch.id) is None and not _has(outcomes[:i], o)]
        costs = self._costs([o.arch for o in outcomes])
        now = datetime.now(timezone.utc)
        rows = [
            {**self._row(outcome), "macs": macs, "params": params, "time": now}
            for outcome, (macs, params) in zip(outcomes, costs, strict=True)
        ]
        if self._store is not None:
            bits = [o for o in outcomes if o.score is not None and o.arch.id not in self._with_bits]
            self._store.append("correct", [self._bits(outcome) for outcome in bits])
            self._with_bits.update(o.arch.id for o in bits)
            self._store.append("scores", rows)  # last: with this the scores are there
        self._new.update({row["arch"]: row for row in rows})
        return [dict(row) for row in rows]

    def _row(self, outcome: ScoredArch) -> Row:
        arch, score = outcome.arch, outcome.score
        row: Row = dict.fromkeys(SCHEMAS["scores"].names)
        row |= {**self._same, "arch": arch.id, "network": arch.network_id, "values": json.dumps(arch.to_dict())}
        row |= {"device": outcome.device, "replica": outcome.replica, "versions": versions_text()}
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

    def _costs(self, archs: Sequence[Arch]) -> list[tuple[int, int]]:
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


def calibration_columns(calibration: Calibration | None) -> Row:
    """Return the columns of calibration images, null without calibration."""
    values = {} if calibration is None else calibration.config.model_dump()
    return {f"calibration_{name}": values.get(name) for name in ("images", "batch_size", "seed")}


def _has(outcomes: Sequence[ScoredArch], outcome: ScoredArch) -> bool:
    return any(other.arch.id == outcome.arch.id for other in outcomes)
