"""Mean intersection over union of segmentations, and COCO's average precision of detections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_iou

IOUS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)
MOST = 100
"""COCO's thresholds, the recalls at which precision is read, and the most detections of a class in an image."""

Kind = Literal["boxes", "masks"]


def confusion(predicted: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Count pixels by their class and the predicted one: int64 [classes, classes]; add the counts of several batches.

    Args:
        predicted, labels: whole numbers, of the same shape. Pixels whose label is no class, such as 255, are left out.
    """
    counted = (labels >= 0) & (labels < classes)
    pairs = labels[counted].long() * classes + predicted[counted].long()
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def class_ious(counts: Tensor) -> Tensor:
    """Return each class's intersection over union [classes]; NaN for a class without a pixel, true or predicted."""
    counts = counts.double()
    both = counts.diagonal()
    return both / (counts.sum(0) + counts.sum(1) - both)


def mean_iou(counts: Tensor) -> float:
    """Return the mean intersection over union, over the classes that there are."""
    return float(class_ious(counts).nanmean())


def average_precision(
    predictions: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]], kind: Kind = "boxes"
) -> dict[str, float]:
    """Return COCO's average precision: the mean over classes and ten thresholds of intersection over union.

    In each image detections are matched by descending score, each to the unmatched object of its class that it covers
    best. Precision is the best at a recall or beyond, read at 101 recalls.

    Args:
        predictions: for each image `boxes` [detections, 4], `labels` and `scores` [detections], and for masks `masks`
            [detections, 1, height, width], as torchvision's detectors give them; masks count from 0.5.
        targets: for each image `boxes`, `labels` and `masks` [objects, height, width], as they take them.
        kind: what is compared: boxes or masks.

    Returns:
        `map`, and `map50` and `map75` at thresholds of 0.5 and 0.75. NaN if there is no object.
    """
    classes = sorted({int(label) for target in targets for label in target["labels"]})
    each = [_of_class(predictions, targets, label, kind) for label in classes]
    table = np.stack(each) if each else np.full((1, len(IOUS)), np.nan)  # [classes, thresholds]
    return {"map": float(table.mean()), "map50": float(table[:, 0].mean()), "map75": float(table[:, 5].mean())}


def _of_class(
    predictions: Sequence[Mapping[str, Tensor]], targets: Sequence[Mapping[str, Tensor]], label: int, kind: Kind
) -> np.ndarray:
    """Return the average precision of one class at each threshold."""
    scores, hits, objects = list[np.ndarray](), list[np.ndarray](), 0
    for prediction, target in zip(predictions, targets, strict=True):
        found = torch.nonzero(prediction["labels"] == label).flatten()
        order = torch.argsort(prediction["scores"][found], descending=True, stable=True)[:MOST]
        found, there = found[order], target["labels"] == label
        objects += int(there.sum())
        scores.append(prediction["scores"][found].double().cpu().numpy())
        hits.append(_matched(_overlaps(prediction[kind][found], target[kind][there], kind)))
    hit = np.concatenate(hits)[np.argsort(-np.concatenate(scores), kind="stable")]  # [detections, thresholds]
    right = hit.cumsum(0)
    recall, precision = right / objects, right / np.arange(1, 1 + len(hit))[:, None]
    precision = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    reached = [np.searchsorted(recall[:, threshold], RECALLS) for threshold in range(len(IOUS))]
    padded = np.concatenate([precision, np.zeros((1, len(IOUS)))])  # precision 0 at a recall that is not reached
    return np.array([padded[places, threshold].mean() for threshold, places in enumerate(reached)])


def _overlaps(found: Tensor, objects: Tensor, kind: Kind) -> np.ndarray:
    """Return the intersection over union of each detection and object [detections, objects]."""
    if kind == "boxes":
        return box_iou(found.double(), objects.double()).cpu().numpy()
    flat = [(found.flatten(1) >= 0.5).double(), objects.flatten(1).double()]
    both = flat[0] @ flat[1].T
    union = flat[0].sum(1)[:, None] + flat[1].sum(1)[None] - both
    return (both / union.clamp(min=1)).cpu().numpy()


def _matched(overlaps: np.ndarray) -> np.ndarray:
    """Return which detections, by descending score, are matched at each threshold: bool [detections, thresholds]."""
    hits = np.zeros((len(overlaps), len(IOUS)), dtype=bool)
    for threshold, least in enumerate(IOUS):
        left = np.ones(overlaps.shape[1], dtype=bool)
        for detection, row in enumerate(overlaps):
            among = np.where(left, row, -1)
            if len(among) and among.max() >= least:
                best = len(among) - 1 - int(among[::-1].argmax())  # of equal ones the last, as in COCO's code
                left[best], hits[detection, threshold] = False, True
    return hits
