"""Stratified, seeded cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raynas.errors import UserError

TEST_FRACTION = 0.2
TEST_SEED = 0  # never the user's: another seed would move test images into training


def cut(
    labels: np.ndarray, fraction: float, seed: int, class_names: Sequence[str], name: str, most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Split positions in two ascending parts, stratified by class: those kept, and those cut off.

    Args:
        labels: int64 [n].
        fraction: share cut off, rounded up to whole images.
        class_names: class names, for messages.
        name: name of the part cut off, for messages: `test` or `search`.
        most: most images of one class that are cut off; None for no limit.

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
    from sklearn.model_selection import train_test_split  # slow import

    wanted = int(np.ceil(fraction * len(labels)))
    if wanted < len(class_names) or len(labels) - wanted < len(class_names):
        raise UserError(
            f"no {name} split can be cut: {wanted} of {len(labels)} images for {len(class_names)} classes; "
            + ("raise search_fraction or add images" if name == "search" else "add images")
        )
    kept, off = train_test_split(np.arange(len(labels)), test_size=fraction, random_state=seed, stratify=labels)
    if most is not None:
        # In the order of the draw, so that a larger part holds a smaller one.
        rank = np.empty(len(off), dtype=np.int64)
        by_class = np.argsort(labels[off], kind="stable")
        sizes = np.bincount(labels[off], minlength=len(class_names))
        rank[by_class] = np.arange(len(off)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        kept, off = np.concatenate([kept, off[rank >= most]]), off[rank < most]
    return np.sort(kept), np.sort(off)
