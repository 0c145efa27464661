"""Results of space evolutions and of an experiment's trials, for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from raynas.costs import Constraints
from raynas.errors import RunDirError
from raynas.outer.evolution.progress import trial_name
from raynas.outer.evolution.record import iteration_run, read_iterations
from raynas.outer.evolution.trials import tried_folders
from raynas.outer.tuning.tuned import read_tuned
from raynas.reports.collect import Tried
from raynas.reports.tuning import Tuning
from raynas.results.schemas import Row
from raynas.runs.run import Run


def searched_spaces(run: Run) -> list[Row]:
    """Return the best subnet of each space that was searched with its supernet (S3, Table 5).

    Returns:
        A row for each finished search: `iteration`, `name` of the space, `search` (name, constraints and scoring, in
        words), `evaluations`, and the winner's `arch`, `error`, `macs` and `params`. Rows with equal `search` and
        `evaluations` had the same budget.
    """
    found = []
    for iteration in read_iterations(run):
        here = iteration_run(run, iteration.index)
        stored = here.search()
        if not stored.has_begun:
            continue
        made, finished = stored.read_back()
        if not finished:
            continue
        settings, winner = stored.settings, stored.winner
        row = stored.comparable_scores()[winner.id]
        limits = Constraints(here.space, settings.search.constraints).describe()
        found.append(
            {
                "iteration": iteration.index,
                "name": iteration.space.name,
                "search": f"{settings.search.name}{f' within {limits}' if limits else ''}, on {row['images']} images",
                "evaluations": made.evaluations,
                "arch": winner.id,
                "error": 1 - row["accuracy"],
                "macs": row["macs"],
                "params": row["params"],
            }
        )
    return found


def tuning_findings(run: Run) -> Tuning | None:
    """Return the trials of a tuning so far; None if the run is none."""
    tuned = read_tuned(run)
    if tuned is None:
        return None
    best = tuned.best_first
    others = [trial for trial in tuned.trials if trial not in best]
    order = [*best, *sorted(others, key=lambda trial: (trial.state != "finished", trial.number))]
    return Tuning(tuned.objectives, [asdict(trial) for trial in order], tuned.study())


def trial_findings(run: Run) -> Sequence[Tried]:
    """Return the measurements so far of each trial that has begun; empty if the run is no experiment of several."""
    found = []
    for values, folder in tried_folders(run):
        try:
            trial = Run(folder)
        except RunDirError:  # never suggested, or not begun yet
            continue
        spaces, scores = (trial.store.read(table).to_pylist() for table in ("spaces", "space_scores"))
        words = ", ".join(f"{key.removeprefix('space_evolution.')}={value}" for key, value in values.items())
        found.append(Tried(words, f"trials/{trial_name(values)}", spaces, scores, searched_spaces(trial)))
    return found
