"""Comparable rows of table `scores`, which can hold scores of several supernets and precisions."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

from raynas.results.store import Store

_CALIBRATION = ("calibration_images", "calibration_batch_size", "calibration_seed")


def comparable_scores(
    store: Store, supernet: str | None = None, images: int | None = None, precision: str | None = None
) -> pa.Table:
    """Return the newest row of each arch, all measured alike and with the calibration of the newest row.

    Args:
        supernet: fingerprint of the present supernet, since a run may have been trained again; None for any.
        images: number of images of the search split; None for the largest of any row.
        precision: the precision; None for that in which most archs were scored, the newest of equals.
    """
    table = store.read("scores", filter=None if supernet is None else pc.field("supernet") == supernet)
    rows = list(enumerate(table.select(["arch", "images", "precision", *_CALIBRATION]).to_pylist()))
    if precision is None:
        each_once = dict.fromkeys((row["arch"], row["precision"]) for _, row in reversed(rows))
        precision = next((name for name, _ in Counter(name for _, name in each_once).most_common(1)), None)
    rows = [(place, row) for place, row in rows if row["precision"] == precision]
    rows = [(place, row) for place, row in rows if all(row[name] == rows[-1][1][name] for name in _CALIBRATION)]
    images = images or max((row["images"] for _, row in rows), default=0)
    newest = {row["arch"]: place for place, row in rows if row["images"] == images}
    return table.take(pa.array(newest.values(), pa.int64()))
