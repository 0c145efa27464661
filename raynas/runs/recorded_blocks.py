"""Blocks and training-free scores of a run, read back to stop archs early once more without scoring anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raynas.results.blocks import KEY, Blocks
from raynas.results.proxies import proxy_values
from raynas.results.schemas import Row
from raynas.results.store import Store, having
from raynas.search.racing import racing_order
from raynas.space import Arch


class NotScored(LookupError):
    """A block or a score is not there yet."""


class RecordedBlocks:
    """A scorer of blocks that knows only what is stored, and raises `NotScored` for the rest; see `RungScorer`.

    Args:
        supernet: fingerprint of the run's supernet.
        images: number of images of whole scores; None for the largest of any row, as in `RunFiles.scores`.
        rows: rows of whole scores, by arch id.
    """

    def __init__(self, store: Store, supernet: str | None, images: int | None, precision: str, rows: Mapping[str, Row]):
        given = {"supernet": supernet, "images": images, "precision": precision}
        known = having({name: value for name, value in given.items() if value is not None})
        # Archs with whole scores have no blocks, and those that a training-free score stopped have neither.
        keys = [*store.read("blocks", KEY, known).to_pylist(), *rows.values()]
        counts = [*(key["images"] for key in keys), *store.read("proxies", ["images"])["images"].to_pylist()]
        self._scores, self._store = rows, store
        self.image_count = images or max(counts, default=1)
        ours = ({name: key[name] for name in KEY} for key in reversed(keys) if key["images"] == self.image_count)
        self._blocks = next((Blocks(store, key, racing_order(self.image_count)) for key in ours), None)

    def score_block(self, archs: Sequence[Arch], first: int, last: int) -> list[np.ndarray | None]:
        """Return the correctness of archs on a block; None for a failed arch."""
        if self._blocks is None:
            raise NotScored
        names = [arch.id for arch in archs]
        self._blocks.read_whole([name for name in names if name in self._scores])
        failed = [self._scores.get(name, {}).get("status") == "failed" for name in names]
        found = [self._blocks.find(name, first, last) for name in names]
        if any(bits is None and not bad for bits, bad in zip(found, failed, strict=True)):
            raise NotScored
        return found

    def score_proxy(self, archs: Sequence[Arch], by: str) -> list[float]:
        """Return training-free scores."""
        known = proxy_values(self._store, by, {"images": self.image_count})
        if any(arch.id not in known for arch in archs):
            raise NotScored
        return [known[arch.id] for arch in archs]

    def score(self, archs: Sequence[Arch]) -> list[Row]:
        """Return rows of whole scores and of failed archs."""
        if any(arch.id not in self._scores for arch in archs):
            raise NotScored
        return [self._scores[arch.id] for arch in archs]
