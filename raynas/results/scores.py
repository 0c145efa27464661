"""Which rows of table `scores` may be compared: a table can hold scores of several supernets and precisions."""

from __future__ import annotations

import pyarrow.compute as pc

from raynas.results.run_dir import RunDir
from raynas.results.schemas import Row

_CALIBRATION = ("calibration_images", "calibration_batch_size", "calibration_seed")


def comparable_scores(run: RunDir, images: int | None = None, precision: str | None = None) -> dict[str, Row]:
    """The newest row of each arch by its id, all of them measured alike: on the run's present supernet, and

    with batch norms calibrated as those of the newest row were.

    Args:
        images: on so many images of the search split; None for the most that any was measured on.
        precision: in this precision; None for that of the newest row.
    """
    chosen = pc.scalar(True)
    if run.exists("supernet.json"):  # a run directory may have been trained anew
        fingerprint = run.read_json("supernet.json").get("fingerprint")
        chosen = pc.field("supernet") == fingerprint if fingerprint else chosen
    rows = run.store.read("scores", filter=chosen).to_pylist()
    precision = precision or next((row["precision"] for row in reversed(rows)), None)
    rows = [row for row in rows if row["precision"] == precision]
    calibrations = [tuple(row[name] for name in _CALIBRATION) for row in rows]  # the newest counts
    rows = [row for row, calibration in zip(rows, calibrations, strict=True) if calibration == calibrations[-1]]
    images = images or max((row["images"] for row in rows), default=0)
    return {row["arch"]: row for row in rows if row["images"] == images}
