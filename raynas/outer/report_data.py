"""What an evolution of a space and the trials of an experiment found, for a report."""

from __future__ import annotations

from collections.abc import Sequence

from raynas.costs import Constraints
from raynas.errors import RunDirError
from raynas.outer.evolution.record import iteration_folder, read_iterations
from raynas.outer.experiment import tried_folders
from raynas.outer.trial_progress import trial_name
from raynas.phases.search import MAIN, read_back, settings_of
from raynas.reports.collect import Tried
from raynas.results import RunDir
from raynas.results.schemas import Row
from raynas.results.scores import comparable_scores
from raynas.runs.networks import find_arch, read_space


def searched_spaces(run: RunDir) -> list[Row]:
    """The best subnet of each space that was searched with its supernet (S3, Table 5).

    Returns:
        A row for each finished search: `iteration`, `name` of the space, how the `search` went (its name, constraints
        and what it scored on, in words), `evaluations`, and of its winner `arch`, `error`, `macs` and `params`. Rows
        with the same `search` and `evaluations` had the same budget.
    """
    found = []
    for iteration in read_iterations(run):
        here = RunDir(run.local_or_uri(iteration_folder(iteration.index)))
        if not here.exists(f"searches/{MAIN}.yaml"):
            continue
        made, finished = read_back(here, MAIN)
        if not finished:
            continue
        settings, winner = settings_of(here, MAIN), find_arch(here, "best")
        row = comparable_scores(here, settings.scoring.images, settings.scoring.precision)[winner.id]
        limits = Constraints(read_space(here), settings.search.constraints).describe()
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


def trial_findings(run: RunDir) -> Sequence[Tried]:
    """What each trial that has begun has measured so far; nothing where the run is no experiment of several."""
    found = []
    for values, folder in tried_folders(run):
        try:
            trial = RunDir(folder)
        except RunDirError:  # not suggested, or not begun
            continue
        spaces, scores = (trial.store.read(table).to_pylist() for table in ("spaces", "space_scores"))
        words = ", ".join(f"{key.removeprefix('space_evolution.')}={value}" for key, value in values.items())
        found.append(Tried(words, f"trials/{trial_name(values)}", spaces, scores, searched_spaces(trial)))
    return found
