"""Stratified, seeded cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.model_selection import train_test_split

from raynas.errors import UserError

TEST_FRACTION = 0.2
TEST_SEED = 0  # never the user's: another seed would move test images into training


def cut(
    labels: np.ndarray, fraction: float, seed: int, class_names: Sequence[str], name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Split positions in two ascending parts, stratified by class: those kept, and those cut off.

    Args:
        labels: int64 [n].
        fraction: share cut off, rounded up to whole images.
        seed: seed of the split.
        class_names: class names, for messages.
        name: name of the part cut off, for messages: `test` or `search`.

    Raises:
        UserError: a class is too small, or the part cut off would be smaller than the number of classes.
    """
    counts = np.bincount(labels, minlength=len(class_names))
    few = [f"{class_names[k]!r} ({counts[k]})" for k in np.flatnonzero(counts < 2).tolist()]
    if few:
        raise UserError(
            f"no {name} split can be cut: classes with fewer than 2 images left: {', '.join(few[:5])}; "
            "add images to them, or leave these classes out"
        )
    wanted = int(np.ceil(fraction * len(labels)))
    if wanted < len(class_names) or len(labels) - wanted < len(class_names):
        raise UserError(
            f"no {name} split can be cut: {wanted} of {len(labels)} images for {len(class_names)} classes; "
            + ("raise search_fraction or add images" if name == "search" else "add images")
        )
    kept, off = train_test_split(np.arange(len(labels)), test_size=fraction, random_state=seed, stratify=labels)
    return np.sort(kept), np.sort(off)
