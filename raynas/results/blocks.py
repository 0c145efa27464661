"""Correctness of archs on blocks of images, read from the tables `correct` (whole scores) and `blocks` (raced ones)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raynas.results.schemas import Row
from raynas.results.store import Store, having

KEY = (
    "supernet",
    "space",
    "data",
    "images",
    "precision",
    "calibration_images",
    "calibration_batch_size",
    "calibration_seed",
)
"""Columns of everything that a score depends on besides its arch; the same in `scores`, `correct` and `blocks`."""


class Blocks:
    """Correctness under one key, by arch and block.

    Args:
        store: the run's tables; None if blocks are only in memory.
        key: values of `KEY`.
        order: the order of images in races, a permutation [images].
    """

    def __init__(self, store: Store | None, key: Mapping[str, Any], order: np.ndarray):
        self._store, self._ours, self._order = store, having(key), order
        self._rows: dict[str, dict[tuple[int, int], Row]] = {}
        self._whole: dict[str, np.ndarray] = {}
        if store is not None:
            self.add(store.read("blocks", filter=self._ours).to_pylist())

    def add(self, rows: Sequence[Row]) -> None:
        """Remember rows of table `blocks`."""
        for row in rows:
            self._rows.setdefault(row["arch"], {})[row["first"], row["last"]] = row

    def unknown(self, archs: Collection[str]) -> list[str]:
        """Return the archs whose correctness on all images is not known, without reading."""
        return [arch for arch in archs if arch not in self._whole and self.rows(arch) is None]

    def read_whole(self, archs: Collection[str]) -> None:
        """Read the correctness of archs with whole scores, unless it is known."""
        unknown = self.unknown(archs)
        if self._store is None or not unknown:
            return
        chosen = self._ours & pc.field("arch").isin(pa.array(unknown, pa.string()))
        for row in self._store.read("correct", ["arch", "top1"], chosen).to_pylist():
            self._whole[row["arch"]] = _bits(row["top1"], len(self._order))[self._order]

    def find(self, arch: str, first: int, last: int) -> np.ndarray | None:
        """Return the correctness of an arch on a block, bool [last - first] in racing order; None if it is unknown."""
        if arch in self._whole:
            return self._whole[arch][first:last]
        rows, found, reached = self._rows.get(arch, {}), [], first
        while reached < last:  # blocks of searches with other rounds and rungs may overlap
            key = max((key for key in rows if key[0] <= reached < key[1]), key=lambda key: key[1], default=None)
            if key is None:
                return None
            found.append(_bits(rows[key]["top1"], key[1] - key[0])[reached - key[0] : last - key[0]])
            reached = key[1]
        return np.concatenate(found)

    def rows(self, arch: str) -> list[Row] | None:
        """Return the rows of blocks of an arch that cover all images once, in order; None if there are none."""
        upto: dict[int, list[Row]] = {0: []}
        for first, last in sorted(self._rows.get(arch, {})):
            if first in upto:
                upto.setdefault(last, [*upto[first], self._rows[arch][first, last]])
        return upto.get(len(self._order))


def _bits(packed: bytes, count: int) -> np.ndarray:
    return np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=count).astype(bool)
