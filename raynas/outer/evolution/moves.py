"""Moves of a space's axes: the line through their E-T errors and the update rule (S3, Eq. 8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from raynas.outer.evolution.axes import Axis, axes_of, step_of
from raynas.outer.evolution.quality import SpaceQuality, resamples, space_quality
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.space import Choice, Codes, Space
from raynas.space.definition import rule_of

ROUNDING = 1e-9
"""Tolerance, in steps: a slope this close to a whole multiple of tau counts as one, and this close to 0 as flat."""


@dataclass(frozen=True)
class Move:
    """The measurement and the move of one axis.

    Attributes:
        members: dimensions that move together.
        before: measured choices.
        after: choices of the next space.
        qualities: quality of the sub-space of each choice.
        slope: slope of the line through their E-T errors, in the settings' units; NaN if no line can be fitted.
        slope_error: standard error of the slope, by the bootstrap over archs.
        steps: number of steps by the update rule, negative towards cheaper choices.
        sure: share of the bootstrap resamples that move the axis by the same number of steps.
        notes: reasons why the axis stays or choices were removed.
    """

    axis: str
    members: tuple[str, ...]
    before: tuple[Choice, ...]
    after: tuple[Choice, ...]
    qualities: tuple[SpaceQuality, ...]
    slope: float
    slope_error: float
    steps: int
    step: float
    sure: float
    notes: tuple[str, ...] = ()

    @property
    def moved(self) -> bool:
        """True if the next space has other choices on this axis."""
        return self.after != self.before

    def stays(self, note: str) -> Move:
        """Return this move taken back, with a note."""
        return replace(self, after=self.before, notes=(*self.notes, note))


def measure_space(
    space: Space, codes: Codes, errors: np.ndarray, config: SpaceEvolutionConfig, rng: np.random.Generator
) -> tuple[SpaceQuality, list[Move]]:
    """Return the quality of a space and a move for each of its axes.

    All are computed on the same resamples of one sample, so that errors common to the sub-spaces cancel in slopes.

    Args:
        codes: codes of the scored archs, [n, dimensions], within the constraints.
        errors: their top-1 errors [n], 0 to 1.
    """
    times = resamples(rng, len(errors))
    whole, _ = space_quality(errors, times, config.top)
    return whole, [propose(space, axis, codes, errors, times, config) for axis in axes_of(space, config.blocks)]


def has_lines(space: Space, codes: Codes, config: SpaceEvolutionConfig) -> bool:
    """Return True if scores of these archs suffice to fit a line for some axis; see `measure_space`."""
    counts = [axis.belongs(space, codes, config.blocks).sum(1) for axis in axes_of(space, config.blocks)]
    return any((count >= config.fewest).sum() > 1 for count in counts)


def propose(
    space: Space, axis: Axis, codes: Codes, errors: np.ndarray, times: np.ndarray, config: SpaceEvolutionConfig
) -> Move:
    """Return the move of one axis by the measured errors and the family's range of values.

    Args:
        times: counts from `resamples`, [1 + draws, n]; the rest as in `measure_space`.
    """
    belongs = axis.belongs(space, codes, config.blocks)
    found = [space_quality(errors[inside], times[:, inside], config.top) for inside in belongs]
    step = step_of(axis, config.steps)
    move = Move(
        axis.name, axis.members, axis.choices, axis.choices, tuple(each for each, _ in found),
        slope=math.nan, slope_error=math.nan, steps=0, step=step, sure=math.nan,
    )  # fmt: skip
    usable = [index for index, (each, _) in enumerate(found) if each.archs >= config.fewest]
    if len(axis.choices) == 1:
        return move.stays("it has one choice: no line")
    if len(usable) < 2:
        return move.stays(f"fewer than two choices have {config.fewest} scored subnets (fewest): no line")
    # The abscissa of a sub-space is the mean over its archs: its choice if all blocks of an arch have one value.
    # If blocks differ, the sub-spaces lie closer together than their choices, and so do their errors.
    where = axis.places(space, codes, config.per)
    places = np.array([where[belongs[index]].mean() for index in usable])
    if np.ptp(places) < ROUNDING:
        return move.stays("the sub-spaces of its choices hold the same subnets: no line")
    scale = 100.0 if config.unit == "percent" else 1.0
    points = scale * np.stack([np.r_[found[index][0].error, found[index][1]] for index in usable])
    slopes = line_slopes(places, points)
    drawn = slopes[1:][~np.isnan(slopes[1:])]
    steps = steps_of(slopes[:1], config)[0]
    drawn_steps = steps_of(drawn, config)
    move = replace(
        move,
        slope=float(slopes[0]),
        slope_error=float(drawn.std(ddof=1)) if len(drawn) > 1 else math.nan,
        steps=int(steps),
        sure=float(np.mean(drawn_steps == steps)) if len(drawn) else math.nan,
    )
    if not step:
        return move.stays("its step is 0")
    alike = float(np.mean(np.sign(drawn_steps) == np.sign(steps))) if len(drawn) else 0.0
    if steps and alike < config.confidence:
        way = "up" if steps > 0 else "down"
        return move.stays(f"only {alike:.0%} of the resamples move it {way}, less than {config.confidence:.0%}")
    return shifted(space, axis, move)


def line_slopes(places: np.ndarray, errors: np.ndarray) -> np.ndarray:
    """Return the slopes of least-squares lines, [samples].

    Args:
        places: abscissas, [points].
        errors: [points, samples].
    """
    centred = places - places.mean()
    return centred @ (errors - errors.mean(axis=0)) / (centred @ centred)


def steps_of(slopes: np.ndarray, config: SpaceEvolutionConfig) -> np.ndarray:
    """Return the numbers of steps for some slopes (Eq. 8), int [n]: negative if the error grows with the cost."""
    counts = slopes / config.tau
    if config.rounding == "floor":
        whole = np.floor(counts + ROUNDING)
    else:
        whole = np.sign(counts) * np.floor(np.abs(counts) + ROUNDING)
    most = math.inf if config.most_steps is None else config.most_steps
    return np.clip(-whole, -most, most).astype(int)


def shifted(space: Space, axis: Axis, move: Move) -> Move:
    """Return a move with its choices shifted, without those outside the dimension's range of values."""
    rule = rule_of(space.family, axis.members[0])
    assert rule is not None
    shift = move.steps * move.step * (-1 if axis.descending else 1)
    kept, gone = [], []
    for choice in axis.choices:
        value = rule.type(round(choice + shift, 6))
        if value <= 0 and not (value == 0 and 0 in axis.choices):  # a depth may be 0
            gone.append(f"{choice:g} would become {value:g}, which is not above 0: it is left out")
        elif not rule.minimum <= value <= rule.maximum:
            span = f"{rule.minimum:g} to {rule.maximum:g}"
            gone.append(f"{choice:g} would become {value:g}, which is outside {span}: it is left out")
        else:
            kept.append(value)
    if not kept:
        return replace(move, notes=tuple(gone)).stays("no choice would be left: it stays")
    return replace(move, after=tuple(kept), notes=tuple(gone)) if move.steps else move


def moved_axes(moves: Sequence[Move]) -> list[Move]:
    """Return the moves that change their axis's choices."""
    return [move for move in moves if move.moved]
