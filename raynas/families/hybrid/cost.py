"""Costs of hybrid subnets, computed from encoded choices (numpy, no torch).

An inverted residual from B to C channels with H hidden ones, on N places before and M after it, executes N B H
(expansion, if any), M k^2 H (depthwise), 2 H S (squeeze to S and back), M H C (projection), and M B C if the shortcut
changes the width. A block of width C on N tokens in w windows, with h heads, v value channels for each channel of the
width and MLPs of E hidden channels, executes N C^2 (2 + 2 v) (query, key, value, projection), 9 N v C (convolution of
values), N^2 / w x (C + v C) (attention), 2 N^2 / w x h^2 (mixing of heads), 4 N C E (two MLPs), and 18 N E if these
have convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from raynas.families.hybrid.space import (
    grids,
    hidden_width,
    mlp_width,
    resolutions,
    squeezed_width,
    window_grid,
)
from raynas.nets.terms import Counts, Term, counts
from raynas.space import Space
from raynas.space.stages import most_blocks

KERNEL = 9
"""Entries of the 3 x 3 kernels of the stem and of the convolutions in blocks."""


def terms(space: Space) -> list[Term]:
    """Return the terms of a hybrid space, which add up to the cost of a subnet."""
    searched = ("resolution",) if space.has("resolution") else ()

    def at_resolution(count: Callable[..., Counts], *options: Any) -> Callable[..., Counts]:
        """Bind options to a count, and the resolution too unless it is searched."""
        return partial(count, *options) if searched else partial(count, *options, resolutions(space)[0])

    before = "stem.width"
    listed = [Term("stem", (*searched, before), at_resolution(_stem, space))]
    for stage, layers in enumerate(most_blocks(space.dimensions)):
        here = f"stages.{stage}"
        width, depth = f"{here}.width", f"{here}.depth"
        conv, block = (f"{here}.kernel", f"{here}.expansion"), (f"{here}.mlp_ratio", f"{here}.windows")
        first = at_resolution(_first, space, stage)
        listed.append(Term(f"{here}.layers.0", (*searched, before, width, *conv), first))
        for layer in range(1, layers):
            if space.constants.kinds[stage] == "conv":
                count = at_resolution(_residual, space, stage, layer)
                listed.append(Term(f"{here}.layers.{layer}", (*searched, depth, width, *conv), count))
            else:
                count = at_resolution(_block, space, stage, layer)
                listed.append(Term(f"{here}.layers.{layer}", (*searched, depth, width, *block), count))
        before = width
    return [*listed, Term("head", (*searched, before, "head.width"), at_resolution(_head, space))]


def _places(grid: tuple[Any, Any]) -> Any:
    return grid[0] * grid[1]


def _stem(space: Space, resolution: Any, width: np.ndarray) -> Counts:
    """Return the cost of a convolution without bias and its batch norm."""
    weights = KERNEL * space.channels * width
    return counts(_places(grids(space, resolution)[0]) * weights, weights + 2 * width)


def _first(
    space: Space,
    stage: int,
    resolution: Any,
    inputs: np.ndarray,
    width: np.ndarray,
    kernel: np.ndarray,
    expansion: np.ndarray,
) -> Counts:
    """Return the cost of a stage's first layer, whose shortcut has a convolution if the widths differ."""
    macs, params = _inverted_residual(space, stage, stage, resolution, inputs, width, kernel, expansion)
    shortcut = np.where(inputs == width, 0, inputs * width)
    return counts(macs + _places(grids(space, resolution)[stage + 1]) * shortcut, params + shortcut)


def _residual(
    space: Space,
    stage: int,
    layer: int,
    resolution: Any,
    depth: np.ndarray,
    width: np.ndarray,
    kernel: np.ndarray,
    expansion: np.ndarray,
) -> Counts:
    """Return the cost of a later layer of a convolutional stage, of stride 1."""
    macs, params = _inverted_residual(space, stage, stage + 1, resolution, width, width, kernel, expansion)
    acts = depth > layer
    return counts(acts * macs, acts * params)


def _inverted_residual(
    space: Space,
    stage: int,
    before: int,
    resolution: Any,
    inputs: np.ndarray,
    width: np.ndarray,
    kernel: np.ndarray,
    expansion: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return MACs and parameters without the shortcut; `before` is the index of the input grid."""
    constants = space.constants
    expands, squeezes = constants.expands[stage], constants.squeeze[stage]
    of = grids(space, resolution)
    hidden = hidden_width(constants, stage, inputs, expansion)
    expand = expands * inputs * hidden
    squeeze = squeezes * hidden * squeezed_width(constants, hidden)
    depthwise, project = kernel**2 * hidden, hidden * width
    macs = _places(of[before]) * expand + _places(of[stage + 1]) * (depthwise + project) + 2 * squeeze
    biases = squeezes * (hidden + squeezed_width(constants, hidden))
    norms = 2 * ((1 + expands) * hidden + width)
    return macs, expand + depthwise + project + 2 * squeeze + biases + norms


def _block(
    space: Space,
    stage: int,
    layer: int,
    resolution: Any,
    depth: np.ndarray,
    width: np.ndarray,
    ratio: np.ndarray,
    windows: np.ndarray,
) -> Counts:
    """Return the cost of a transformer block: attention, two MLPs, three norms and two rows of factors."""
    constants = space.constants
    grid = grids(space, resolution)[stage + 1]
    window = window_grid(grid, windows)
    tokens, pairs = _places(grid), windows * _places(window) ** 2
    heads, values, hidden = width // constants.head_dim, constants.value_ratio * width, mlp_width(width, ratio)
    linear = 2 * width * (width + values) + 4 * width * hidden
    convolved = KERNEL * (values + 2 * constants.mlp_conv * hidden)
    macs = tokens * (linear + convolved) + pairs * (width + values + 2 * heads**2)
    biases = 2 * width + values + width + 2 * (hidden + width) + 2 * heads
    relative = (2 * window[0] - 1) * (2 * window[1] - 1) * heads
    scaling = 0 if constants.scaling == "none" else 2 * width
    params = linear + convolved + 2 * heads**2 + biases + relative + 6 * width + scaling
    acts = depth > layer
    return counts(acts * macs, acts * params)


def _head(space: Space, resolution: Any, width: np.ndarray, mixed: np.ndarray) -> Counts:
    """Return the cost of a normed convolution before the pooling, a convolution after it, and the classifier."""
    wide = space.constants.head_expansion * width
    tokens = _places(grids(space, resolution)[-1])
    mix, classify = wide * mixed, mixed * space.classes
    return counts(tokens * width * wide + mix + classify, width * wide + 2 * wide + mix + classify + space.classes)
