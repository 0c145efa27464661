"""Space evolution: the loop of S3 over whole spaces (Chen et al., 2021, Algorithm 1).

It measures a space by the scores of sampled subnets (`Measure`: a supernet's training, or any function), moves each of
its axes, and repeats. It runs in one process; `raynas.outer.evolution.trials` runs several evolutions side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from raynas.comparison import best_first
from raynas.costs import Bounds, cost
from raynas.errors import ConfigError, InfeasibleError, UserError
from raynas.outer.evolution.axes import check_steps
from raynas.outer.evolution.explain import explain, heading
from raynas.outer.evolution.moves import has_lines, measure_space, moved_axes
from raynas.outer.evolution.next_space import Limits, next_space
from raynas.outer.evolution.record import (
    Iteration,
    best_iterations,
    read_iterations,
    rows_of,
    seconds_of,
    space_file,
    write_iteration,
    write_scores,
)
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.progress.reporter import Progress, silent
from raynas.runs.run import Run
from raynas.runs.settings import begin
from raynas.search import RandomSearch
from raynas.space import Arch, Space
from raynas.space.counting import shown_count

Measure = Callable[[int, Space, Sequence[Arch]], Sequence[float | None]]
"""Function that returns the top-1 accuracies of archs of an iteration's space, in their order; None for failed ones.

It is called again with the same arguments after an interruption, and should then reuse the rows that it wrote.
"""

LOG, BEST = "space_evolution.txt", "spaces/best.yaml"
_LEAST = 2  # archs needed to measure a space


def evolve_space(
    run: Run,
    space: Space,
    config: SpaceEvolutionConfig,
    measure: Measure,
    constraints: Mapping[str, Bounds] | None = None,
    about: Mapping[str, Any] | None = None,
    progress: Progress = silent,
    after_each: Callable[[Iteration], None] = lambda iteration: None,
) -> list[Iteration]:
    """Run an evolution, or resume it: finished iterations are read back, and nothing is measured twice.

    Args:
        run: run directory for `spaces/0.yaml` and so on, `spaces/best.yaml` (the space of the lowest E-T error), the
            log `space_evolution.txt`, and the tables `spaces`, `space_moves` and `space_scores`.
        constraints: inclusive bounds by cost that every scored arch meets.
        about: settings that the measurement depends on; an evolution is not resumed with others.
        after_each: called after each iteration, including those that were read back.

    Returns:
        The iterations, one for each space.

    Raises:
        ConfigError: a step is for an unknown dimension, or the space is larger than allowed.
        InfeasibleError: no arch of the initial space meets the constraints.
        RunDirError: the run directory began with other settings, or is in use.
        UserError: fewer than two archs of a space could be scored.
    """
    bounds = dict(constraints or {})
    check_evolution(space, config, bounds)
    settings = {"space": space.to_dict(), "constraints": bounds, **(about or {}), "settings": config}
    with run.lock():
        begin(run, "space_evolution", settings)
        run.write_yaml(space_file(0), space.to_dict())
        done = {iteration.index: iteration for iteration in read_iterations(run)}
        found: list[Iteration] = []
        log = [heading(space, config, bounds)]
        progress(log[0])
        here: Space | None = space
        while here is not None:
            index = len(found)
            known = done.get(index)
            iteration = known or _iterate(run, index, here, config, measure, bounds, [each.space for each in found])
            found.append(iteration)
            lines = explain(iteration, config)
            log += lines
            run.write_bytes(LOG, ("\n".join(log) + "\n").encode())
            if known is None:
                write_iteration(run, iteration, config.seed)
            for line in lines:
                progress(line)
            after_each(iteration)
            here = iteration.next
        best, *equal = best_iterations(found)
        run.write_yaml(BEST, best.space.to_dict())
        also = ", ".join(str(each.index) for each in equal)
        tie = f" (the same error as {also}: ties go to fewer MACs on average, then to the first)" if equal else ""
        progress(f"the best space is that of iteration {best.index}{tie}: {run.name}/{space_file(best.index)}")
    return found


def check_evolution(space: Space, config: SpaceEvolutionConfig, constraints: Mapping[str, Bounds]) -> None:
    """Check that an evolution can begin with some settings; errors as in `evolve_space`."""
    check_steps(space, config.steps, config.blocks)
    if config.largest is not None and space.cardinality() > config.largest:
        count = shown_count(space.cardinality())
        raise ConfigError(f"largest: {space.name} itself holds {count} archs, more than {config.largest:,.0f}")
    _sampler(space, constraints, config, 0)


def can_move(space: Space, config: SpaceEvolutionConfig, constraints: Mapping[str, Bounds]) -> bool:
    """Return True if the first sample of archs suffices to fit a line for some axis; see `evolve_space`."""
    return has_lines(space, space.encode(_archs(space, constraints, config, 0)), config)


def _iterate(
    run: Run,
    index: int,
    space: Space,
    config: SpaceEvolutionConfig,
    measure: Measure,
    bounds: Mapping[str, Bounds],
    before: Sequence[Space],
) -> Iteration:
    """Measure a space and move it."""
    began = time.monotonic()
    archs = _archs(space, bounds, config, index)
    known = {row["arch"]: row["accuracy"] for row in rows_of(run, "space_scores", index)}
    if not known:
        accuracies = measure(index, space, archs)
        write_scores(run, index, archs, accuracies)
        known = {arch.id: accuracy for arch, accuracy in zip(archs, accuracies, strict=True)}
    seconds = seconds_of(run, index) or time.monotonic() - began
    good = [arch for arch in archs if known[arch.id] is not None]
    if len(good) < _LEAST:
        raise UserError(
            f"space {space.name}: {len(good)} of {len(archs)} subnets could be scored: too few to measure it"
        )
    errors = np.array([1 - known[arch.id] for arch in good])
    rng = np.random.default_rng([config.seed, index])
    whole, moves = measure_space(space, space.encode(good), errors, config, rng)
    root = (before[0] if before else space).name
    # With fewer archs no line could be fitted in the next space; it need not have more than this one, though.
    fewest = min(2 * config.fewest, len(good))
    moved, made = next_space(space, moves, f"{root}.{index + 1}", Limits(config.largest, bounds, fewest))
    ended = None
    if not moved_axes(made):
        ended = "no axis moves"
    elif moved in before:
        ended = f"the next space would be that of iteration {before.index(moved)} again"
    elif index + 1 == config.iterations:
        ended = "it was the last iteration; the moves show the space that would have followed"
    elif bounds:
        try:
            count = len(_archs(moved, bounds, config, index + 1))
        except InfeasibleError as error:
            ended = f"nothing in the next space meets the constraints: {error}"
        else:
            ended = None if count >= _LEAST else f"only {count} arch of the next space meets the constraints"
    costs = cost(space, good)
    best = best_first(errors.tolist(), [costs[name].tolist() for name in bounds or ("macs",)])[0]
    about_best = {"best": good[best].id, "best_error": float(errors[best])}
    about_best |= {f"best_{name}": int(costs[name][best]) for name in ("macs", "params")}
    return Iteration(
        index, space, whole, tuple(made), about_best, float(costs["macs"].mean()), seconds,
        next=moved if ended is None else None, ended=ended,
    )  # fmt: skip


def _archs(space: Space, bounds: Mapping[str, Bounds], config: SpaceEvolutionConfig, index: int) -> list[Arch]:
    """Return the sampled archs: all different, each choice equally likely before the constraints."""
    sampler, archs = _sampler(space, bounds, config, index), []
    while asked := sampler.ask(config.archs):
        archs += asked
    return archs


def _sampler(space: Space, bounds: Mapping[str, Bounds], config: SpaceEvolutionConfig, index: int) -> RandomSearch:
    seed = int(np.random.SeedSequence([config.seed, index]).generate_state(1)[0])
    return RandomSearch(space, constraints=bounds, seed=seed, evaluations=config.archs)
