"""Timing of random archs within narrow windows of a cost, compared with rejection sampling from the whole space."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from raynas.costs import cost
from raynas.costs.window import Window
from raynas.errors import UserError
from raynas.progress.reporter import Progress, silent
from raynas.space import Distribution, Space, load_space
from raynas.space.codes import Uniform

_REJECTED = 20_000
MOST_DRAWS = 1_000_000


@dataclass(frozen=True)
class WindowTiming:
    """Timing of one window.

    Attributes:
        share: the share of all archs that was asked for.
        low, high: bounds, in the unit of the cost.
        held: probability that a random arch lies in the window; 0 if it is empty.
        setup: seconds to build the tables.
        accepted: fraction of the archs drawn from the tables that lie in the window.
        each: seconds for one arch of the window, drawn from the tables.
        rejection: seconds for one arch of the window, drawn from the whole space.
    """

    share: float
    low: float
    high: float
    held: float
    setup: float
    accepted: float
    each: float
    rejection: float


def bench_window(
    space: Space | str = "autoformer/small",
    name: str = "macs",
    shares: Sequence[float] = (1e-2, 1e-3, 1e-4),
    draws: int = 2000,
    uniform_over: Uniform = "dimensions",
    progress: Progress = silent,
) -> list[WindowTiming]:
    """Time windows that begin at the median of a cost and would hold given shares of a smooth distribution.

    Args:
        space: a space, or a shipped one's name.
        name: name of the cost.
        shares: shares of all archs, one window for each. If costs take few values, a window may hold more, or nothing.
        draws: archs drawn from each window.
        uniform_over: as for `Space.sample_codes`.
        progress: called with a line at each step.

    Raises:
        UserError: there is no such space, a share is not above 0 and at most 1, or there are too many draws.
    """
    if draws > MOST_DRAWS:
        raise UserError(f"draws must be at most {MOST_DRAWS:,}, not {draws:,}")
    for share in shares:
        if not 0 < share <= 1:  # NaN neither
            raise UserError(f"a share of the archs is above 0 and at most 1, not {share:g}")
    space = load_space(space) if isinstance(space, str) else space
    began = time.perf_counter()
    values = cost(space, space.sample_codes(np.random.default_rng(0), _REJECTED, uniform_over))[name]
    one = (time.perf_counter() - began) / _REJECTED
    median, after = np.quantile(values, [0.5, 0.51])
    found = []
    for share in shares:
        low, high = float(median), float(median + (after - median) * share / 0.01)
        progress(f"{name} in [{low:.0f}, {high:.0f}]")
        began = time.perf_counter()
        window = Window(Distribution.uniform(space, uniform_over), name, low, high)
        setup = time.perf_counter() - began
        began = time.perf_counter()
        inside = len(window.draw(np.random.default_rng(0), draws)) if window.share else 0
        seconds = time.perf_counter() - began
        held = window.share * inside / draws
        each, rejection = (seconds / inside, one / held) if inside else (math.inf, math.inf)
        found.append(WindowTiming(share, low, high, held, setup, inside / draws, each, rejection))
    return found
