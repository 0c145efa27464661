"""The log of space evolution: what moved, why, and how sure it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from raynas.costs import Bounds, Constraints
from raynas.outer.evolution.moves import Move
from raynas.outer.evolution.quality import SpaceQuality
from raynas.outer.evolution.record import Iteration
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.space import Choice, Space
from raynas.space.counting import shown_count


def heading(space: Space, config: SpaceEvolutionConfig, constraints: Mapping[str, Bounds]) -> str:
    """Return a line that announces an evolution with its settings."""
    within = Constraints(space, constraints).describe()
    return (
        f"space evolution of {space.name}: {config.iterations} iteration(s) of {config.archs:,} subnets"
        f"{f' within {within}' if within else ''} (±: standard errors)"
    )


def explain(iteration: Iteration, config: SpaceEvolutionConfig) -> list[str]:
    """Return an iteration as lines of text: each axis with the numbers that moved it."""
    space, whole, best = iteration.space, iteration.quality, iteration.best
    tier = f"{100 * config.top:g} % of them" if config.top < 1 else f"{config.top:.0f}"
    lines = [
        f"space {iteration.index}: {space.name}, {shown_count(space.cardinality())} archs",
        f"  E-T error {whole.error:.2%} ± {whole.standard_error:.2%}: mean {whole.mean:.2%}, "
        f"best {tier} {whole.top:.2%}, of {whole.archs:,} subnets",
        f"  best subnet {best['best']}: error {best['best_error']:.2%}, {best['best_macs']:,} MACs",
    ]
    for move in iteration.moves:
        lines += _axis(move, config)
    lines.append(f"  {_follows(iteration)}")
    return lines


def _axis(move: Move, config: SpaceEvolutionConfig) -> Iterator[str]:
    where = f"{listed(move.before)} -> {listed(move.after)}" if move.moved else f"{listed(move.before)} stays"
    yield f"  {move.axis}: {where}"
    if not math.isnan(move.slope):
        yield f"    {_rule(move, config)}"
        sets = zip(move.before, move.qualities, strict=True)
        yield "    E-T errors: " + ", ".join(f"{choice:g}: {_measured(each)}" for choice, each in sets)
    for note in move.notes:
        yield f"    {note}"


def _measured(quality: SpaceQuality) -> str:
    if not quality.archs:
        return "none scored"
    sure = "" if math.isnan(quality.standard_error) else f" ± {quality.standard_error:.2%}"
    return f"{quality.error:.2%}{sure} ({quality.archs:,})"


def _rule(move: Move, config: SpaceEvolutionConfig) -> str:
    """Return Eq. 8 with its numbers."""
    points = " points" if config.unit == "percent" else ""
    slope = f"slope {move.slope:+.3g} ± {move.slope_error:.2g}{points} per {config.per}, tau {config.tau:g}"
    unit = "step" if abs(move.steps) == 1 else "steps"
    if move.steps:
        way = "up" if move.steps > 0 else "down"
        limit = " (the most allowed)" if abs(move.steps) == config.most_steps else ""
        said = f"{abs(move.steps)} {unit} of {move.step:g} {way} in cost{limit}"
    else:
        said = "no step"
    return f"{slope}: {said}; {move.sure:.0%} of the resamples say the same"


def _follows(iteration: Iteration) -> str:
    if iteration.ended is not None:
        return f"it ends here: {iteration.ended}"
    count = sum(move.moved for move in iteration.moves)
    return f"{count} of {len(iteration.moves)} axes move"


def listed(choices: Sequence[Choice]) -> str:
    """Return choices as text, as in a YAML file."""
    return f"[{', '.join(f'{choice:g}' for choice in choices)}]"
