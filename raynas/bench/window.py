"""How long random archs of narrow windows take, beside drawing from the whole space and throwing away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raynas.costs import cost
from raynas.costs.window import Window
from raynas.errors import UserError
from raynas.space import Distribution, Space, load_space
from raynas.space.space import Uniform

_REJECTED = 20_000
MOST_DRAWS = 1_000_000


@dataclass(frozen=True)
class WindowTiming:
    """One window.

    Attributes:
        share: asked for.
        low, high: its bounds, in the unit of the cost.
        held: what it holds of the archs, by their probability; 0 where it is empty.
        setup: seconds that its tables take.
        accepted: how many of the archs drawn from the tables are in it, of 1.
        each: seconds for an arch of the window out of the tables.
        rejection: seconds for one by drawing from the whole space.
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
    progress: Callable[[str], None] = lambda line: None,
) -> list[WindowTiming]:
    """Time windows that begin at the median of a cost and would hold given shares of a smooth distribution.

    Args:
        space: a space, or a shipped one's name.
        name: of the cost.
        shares: of the archs, one window each. Where costs are few, what a window really holds may be more, or nothing.
        draws: from each window.
        uniform_over: as of `Space.sample_codes`.
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
