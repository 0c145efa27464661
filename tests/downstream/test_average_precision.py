"""Metrics against cases worked by hand, and against a slow and literal computation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from raynas.downstream.metrics import average_precision, class_ious, confusion, mean_iou


def test_intersection_over_union_by_hand() -> None:
    labels = torch.tensor([[0, 0, 1], [1, 1, 2]])
    predicted = torch.tensor([[0, 1, 1], [1, 2, 2]])
    counts = confusion(predicted, labels, 4)
    assert counts.tolist() == [[1, 1, 0, 0], [0, 2, 1, 0], [0, 0, 1, 0], [0, 0, 0, 0]]
    assert class_ious(counts)[:3].tolist() == [1 / 2, 2 / 4, 1 / 2] and class_ious(counts)[3].isnan()
    assert mean_iou(counts) == 0.5
    assert torch.equal(counts, confusion(predicted[0], labels[0], 4) + confusion(predicted[1], labels[1], 4))


def test_pixels_of_no_class_are_left_out_and_bytes_do_not_overflow() -> None:
    labels = torch.tensor([[20, 255, 19], [0, 255, 20]], dtype=torch.uint8)
    predicted = torch.tensor([[20, 3, 20], [0, 0, 20]])
    counts = confusion(predicted, labels, 21)
    assert counts.sum() == 4 and [counts[20, 20], counts[19, 20], counts[0, 0]] == [2, 1, 1]
    assert torch.equal(confusion(predicted, labels.long().where(labels != 255, -1), 21), counts)


def detections(*rows: tuple[float, ...]) -> dict[str, Tensor]:
    """From (left, upper, right, lower, label, score)."""
    table = torch.tensor(rows).reshape(-1, 6)
    return {"boxes": table[:, :4], "labels": table[:, 4].long(), "scores": table[:, 5]}


def objects(*rows: tuple[float, ...]) -> dict[str, Tensor]:
    """From (left, upper, right, lower, label)."""
    table = torch.tensor(rows).reshape(-1, 5)
    return {"boxes": table[:, :4], "labels": table[:, 4].long()}


def test_average_precision_by_hand() -> None:
    square = (0.0, 0.0, 10.0, 10.0)
    two = [objects((*square, 1), (20, 20, 30, 30, 1))]
    assert average_precision([detections((*square, 1, 0.9), (20, 20, 30, 30, 1, 0.8))], two)["map"] == 1
    # A wrong one between two right ones: precision is 1 up to recall 1/2 (51 recalls), then 2/3 (50 recalls).
    between = detections((*square, 1, 0.9), (50, 50, 60, 60, 1, 0.8), (20, 20, 30, 30, 1, 0.7))
    assert average_precision([between], two)["map"] == pytest.approx((51 + 50 * 2 / 3) / 101)
    # The same object found twice is wrong the second time; the other object is never found.
    twice = detections((*square, 1, 0.9), (*square, 1, 0.8))
    assert average_precision([twice], two)["map"] == pytest.approx(51 / 101)
    # Half covers: 60 of 100 pixels, right at thresholds 0.5, 0.55 and 0.6.
    partly = average_precision([detections((0, 0, 10, 6, 1, 0.9))], [objects((*square, 1))])
    assert partly == {"map": pytest.approx(0.3), "map50": 1, "map75": 0}
    # The mean over classes: one is found, of the other there is a detection of a wrong class.
    mixed = [objects((*square, 1), (20, 20, 30, 30, 2))]
    assert average_precision([detections((*square, 1, 0.9), (20, 20, 30, 30, 3, 0.8))], mixed)["map"] == 0.5
    assert average_precision([detections()], two)["map"] == 0
    assert np.isnan(average_precision([detections((*square, 1, 0.9))], [objects()])["map"])


def test_masks_are_compared_by_their_pixels() -> None:
    mask = torch.zeros(1, 4, 4)
    mask[0, :2] = 1
    target = {"labels": torch.tensor([1]), "boxes": torch.zeros(1, 4), "masks": mask.to(torch.uint8)}
    drawn = torch.full((1, 1, 4, 4), 0.4)
    drawn[0, 0, :3] = 0.7  # 8 of 12 pixels: right at thresholds 0.5, 0.55, 0.6 and 0.65
    found = {"labels": torch.tensor([1]), "scores": torch.tensor([0.9]), "boxes": torch.ones(1, 4), "masks": drawn}
    assert average_precision([found], [target], "masks")["map"] == pytest.approx(0.4)
    assert average_precision([found], [target], "boxes")["map"] == 0


def literal(predictions: list[dict[str, Tensor]], targets: list[dict[str, Tensor]]) -> float:
    """Average precision, definition by definition: for boxes that score differently and overlap differently."""
    found = []
    for label in {int(each) for target in targets for each in target["labels"]}:
        total = sum(int((target["labels"] == label).sum()) for target in targets)
        for percent in range(50, 100, 5):
            listed = []
            for prediction, target in zip(predictions, targets, strict=True):
                free = [box for box, of in zip(target["boxes"], target["labels"], strict=True) if of == label]
                rows = zip(prediction["scores"], prediction["boxes"], prediction["labels"], strict=True)
                for score, box, of in sorted(rows, key=lambda row: -float(row[0])):
                    if of != label:
                        continue
                    best = max(free, key=lambda other: overlap(box, other), default=None)
                    right = best is not None and overlap(box, best) >= percent / 100
                    free = [other for other in free if not (right and other is best)]
                    listed.append((-float(score), right))
            listed.sort()
            points = []
            for count in range(1, 1 + len(listed)):
                hits = sum(each for _, each in listed[:count])
                points.append((hits / total, hits / count))
            read = [max([p for r, p in points if r >= step / 100 - 1e-12], default=0.0) for step in range(101)]
            found.append(sum(read) / 101)
    return float(np.mean(found))


def overlap(a: Tensor, b: Tensor) -> float:
    width, height = (float(min(a[k + 2], b[k + 2]) - max(a[k], b[k])) for k in (0, 1))
    both = max(width, 0) * max(height, 0)
    areas = [float((box[2] - box[0]) * (box[3] - box[1])) for box in (a, b)]
    return both / (sum(areas) - both)


def test_random_detections_as_by_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)

    def boxes(count: int) -> Tensor:
        corner = torch.rand(count, 2, generator=generator) * 40
        return torch.cat([corner, corner + 5 + torch.rand(count, 2, generator=generator) * 15], dim=1)

    targets, predictions = [], []
    for _ in range(12):
        count = int(torch.randint(0, 5, (), generator=generator))
        labels = torch.randint(1, 4, (count,), generator=generator)
        targets.append({"boxes": boxes(count), "labels": labels})
        moved = targets[-1]["boxes"] + torch.randn(count, 4, generator=generator)
        others = torch.randint(1, 4, (3,), generator=generator)
        found = {"boxes": torch.cat([moved, boxes(3)]), "labels": torch.cat([labels, others])}
        predictions.append({**found, "scores": torch.rand(count + 3, generator=generator)})
    result = average_precision(predictions, targets)["map"]
    assert 0.1 < result < 0.9 and result == pytest.approx(literal(predictions, targets))
