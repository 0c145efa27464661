"""Where each axis of a space should move: the line through its E-T errors and the update rule (S3, Eq. 8)."""

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
"""Of a step: a slope that is this close to a whole number of tau is one, and one this close to 0 is flat."""


@dataclass(frozen=True)
class Move:
    """What was measured along one axis, and where it goes.

    Attributes:
        axis: its name.
        members: the dimensions that move together.
        before: the choices that were measured.
        after: the choices of the next space.
        qualities: of the sub-space of each choice.
        slope: of the line through their E-T errors, in the settings' units; NaN where no line can be drawn.
        slope_error: its standard error, by the bootstrap over archs.
        steps: so many steps, below 0 towards cheaper choices; before anything was taken back.
        step: the size of one.
        sure: the share of the bootstrap resamples that move the axis by the same number of steps.
        notes: what else there is to say: why it stays, which choices were removed and why.
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
        """Whether the next space has other choices here."""
        return self.after != self.before

    def stays(self, note: str) -> Move:
        """This move taken back."""
        return replace(self, after=self.before, notes=(*self.notes, note))


def measure_space(
    space: Space, codes: Codes, errors: np.ndarray, config: SpaceEvolutionConfig, rng: np.random.Generator
) -> tuple[SpaceQuality, list[Move]]:
    """The quality of a space, and where each of its axes should move.

    All from one sample and the same resamples of it, so that what the sub-spaces have in common cancels in slopes.

    Args:
        space: what the archs are of.
        codes: of the scored archs [n, dimensions], within the constraints.
        errors: their top-1 errors [n], 0 to 1.
        config: the settings.
        rng: of the bootstrap.
    """
    times = resamples(rng, len(errors))
    whole, _ = space_quality(errors, times, config.top)
    return whole, [propose(space, axis, codes, errors, times, config) for axis in axes_of(space, config.blocks)]


def has_lines(space: Space, codes: Codes, config: SpaceEvolutionConfig) -> bool:
    """Whether a line can be drawn for some axis once these archs are scored: see `measure_space`."""
    counts = [axis.belongs(space, codes, config.blocks).sum(1) for axis in axes_of(space, config.blocks)]
    return any((count >= config.fewest).sum() > 1 for count in counts)


def propose(
    space: Space, axis: Axis, codes: Codes, errors: np.ndarray, times: np.ndarray, config: SpaceEvolutionConfig
) -> Move:
    """Where one axis should move, as far as the measured errors and the family's range of values say.

    Args:
        times: from `resamples`, [1 + draws, n]; the rest as in `measure_space`.
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
    # Each set stands where its archs are on average. That is its choice where an arch has one value; where blocks
    # differ the sets lie closer together than their choices, and so do their errors.
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
    """Slopes of the least-squares lines through some errors.

    Args:
        places: [points].
        errors: [points, samples].

    Returns:
        [samples].
    """
    centred = places - places.mean()
    return centred @ (errors - errors.mean(axis=0)) / (centred @ centred)


def steps_of(slopes: np.ndarray, config: SpaceEvolutionConfig) -> np.ndarray:
    """By how many steps slopes move an axis (Eq. 8): down in cost where the error grows with it, else up; int [n]."""
    counts = slopes / config.tau
    if config.rounding == "floor":
        whole = np.floor(counts + ROUNDING)
    else:
        whole = np.sign(counts) * np.floor(np.abs(counts) + ROUNDING)
    most = math.inf if config.most_steps is None else config.most_steps
    return np.clip(-whole, -most, most).astype(int)


def shifted(space: Space, axis: Axis, move: Move) -> Move:
    """A move with its choices shifted, and without those that fall out of the range of the dimension's values."""
    rule = rule_of(space.family, axis.members[0])
    assert rule is not None
    shift = move.steps * move.step * (-1 if axis.descending else 1)
    kept, gone = [], []
    for choice in axis.choices:
        value = rule.type(round(choice + shift, 6))
        if value <= 0 and not (value == 0 and 0 in axis.choices):  # a stage or a network may be of depth 0
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
    """Those that go elsewhere."""
    return [move for move in moves if move.moved]
