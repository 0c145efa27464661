"""The cost format of every family: a sum of terms over the choices (numpy, no torch)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raynas.space import Space


class Counts(NamedTuple):
    """Costs of one term for n archs, int64 [n] each.

    Attributes:
        macs: multiply-accumulates that our extracted subnet executes for one image: convolutions, linear layers and
            matrix products; no biases, norms, softmax, activations or gathers.
        params: parameters of the extracted subnet.
        paper_macs: multiply-accumulates as the paper computes the same thing.
    """

    macs: np.ndarray
    params: np.ndarray
    paper_macs: np.ndarray


@dataclass(frozen=True)
class Term:
    """A part of a network whose cost depends on a few choices only.

    Attributes:
        name: `patch_embedding`, `blocks.3.attention`.
        dimensions: names of the dimensions that it depends on, of at most one block, so that costs can be summed block
            by block once the others are fixed.
        count: the costs, from one array [n] of values for each of `dimensions`, in that order. An inactive gene has
            value 0, and the terms of its block are then 0.
    """

    name: str
    dimensions: tuple[str, ...]
    count: Callable[..., Counts]


def counts(macs: np.ndarray, params: np.ndarray) -> Counts:
    """Return counts whose `paper_macs` equal their `macs`."""
    return Counts(macs, params, macs)


def mlp(tokens: int | np.ndarray, width: np.ndarray, hidden: np.ndarray) -> Counts:
    """Return the cost of a block's second half: norm and two linear layers."""
    weights = 2 * width * hidden
    return counts(tokens * weights, weights + hidden + (hidden > 0) * 3 * width)


def head(space: Space, width: np.ndarray) -> Counts:
    """Return the cost of the final norm, the classifiers (of one vector each) and the token head, if any."""
    classifiers = 1 + int(space.constants.distillation_token)
    heads = classifiers + int(space.constants.token_head)
    return counts(classifiers * width * space.classes, heads * (width + 1) * space.classes + 2 * width)
