"""Datasets as users write them, named `tests.data.user_datasets:...`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from tests.data.pictures import picture

LABELS = torch.arange(30) % 3
FLOATS = (torch.arange(30).view(30, 1, 1, 1) / 255).expand(30, 2, 6, 5).clone()


class Pictures(Dataset):
    """Colour and grey pictures of several sizes, with more than items tell."""

    classes = ("ant", "bee", "cat")

    def __init__(self, labels: list[int]):
        self.targets = labels

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, k: int) -> tuple[Any, int]:
        return picture(k, size=(110 + k, 100), mode="RGB" if k % 2 else "L"), self.targets[k]


class Misleading(Pictures):
    """Its `targets` are not the labels of its items."""

    def __getitem__(self, k: int) -> tuple[Any, int]:
        return Image.new("L", (8, 8), k), (self.targets[k] + 1) % 3


def floats() -> Dataset:
    return TensorDataset(FLOATS, LABELS)


def pair() -> tuple[Dataset, Dataset]:
    return TensorDataset(FLOATS[:20], LABELS[:20]), TensorDataset(FLOATS[20:], LABELS[20:])


def pictures() -> Dataset:
    return Pictures([k % 3 for k in range(30)])


def misleading() -> Dataset:
    return Misleading([k % 3 for k in range(30)])


def nan() -> Dataset:
    bad = FLOATS.clone()
    bad[:, 0, 2, 2] = torch.nan
    return TensorDataset(bad, LABELS)


def normalised() -> Dataset:
    return TensorDataset(FLOATS * 5 - 2, LABELS)


def negative() -> Dataset:
    return TensorDataset(FLOATS, LABELS - 1)


def beyond() -> Dataset:
    return Pictures([k % 4 for k in range(30)])


def beyond_in_test() -> tuple[Dataset, Dataset]:
    return TensorDataset(FLOATS, LABELS), TensorDataset(FLOATS, LABELS + 1)


def one_class() -> Dataset:
    return TensorDataset(FLOATS, LABELS * 0)


def float_labels() -> Dataset:
    return TensorDataset(FLOATS, LABELS.float())


def arrays() -> Dataset:
    return [(np.zeros((6, 5)), k % 3) for k in range(30)]  # type: ignore[return-value]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def streaming() -> Dataset:
    return Stream()


def raising() -> Dataset:
    raise RuntimeError("no disk\nat all")


class WithTargets(TensorDataset):
    targets = 5


def targets_without_length() -> Dataset:
    return WithTargets(FLOATS, LABELS)


def huge_label() -> Dataset:
    return TensorDataset(FLOATS, LABELS * 2**40)


class Leaving(TensorDataset):
    def __getitem__(self, index: int) -> Any:
        sys.exit(2)


def leaving() -> Dataset:
    return Leaving(FLOATS, LABELS)


def meta_tensors() -> Dataset:
    return [(torch.zeros(1, 6, 5, device="meta"), k % 3) for k in range(30)]  # type: ignore[return-value]


def pictures_without_pixels() -> Dataset:
    return [(Image.new("L", (0, 0)), k % 3) for k in range(30)]  # type: ignore[return-value]
