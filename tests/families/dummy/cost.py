"""Costs of the dummy family: N C multiply-accumulates for N pixel values and width C, and C K for K classes."""

from __future__ import annotations

from functools import partial

import numpy as np

from raynas.nets.terms import Counts, Term, counts
from raynas.space import Space
from tests.families.dummy.space import pixels


def terms(space: Space) -> list[Term]:
    """Return the terms, which add up to the cost of a subnet."""
    inputs, classes = pixels(space), space.classes
    return [Term("body", ("width",), partial(_body, inputs)), Term("head", ("width",), partial(_head, classes))]


def _body(inputs: int, width: np.ndarray) -> Counts:
    return counts(inputs * width, (inputs + 1) * width)


def _head(classes: int, width: np.ndarray) -> Counts:
    return counts(classes * width, classes * (width + 1))
