"""Folders of the trials of space evolutions, and their progress, read from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from raynas.config import validate
from raynas.documents import Document
from raynas.errors import RunDirError, UserError
from raynas.outer.evolution.explain import explain
from raynas.outer.evolution.record import Iteration, iteration_run, read_iterations
from raynas.outer.trials import Trial
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.progress.reporter import Reporter
from raynas.runs.run import Run

POLL_S = 5.0  # seconds between two reads of the trials' folders


def trial_folder(run: Run, values: Mapping[str, Any]) -> str:
    """Return the path of a trial's run directory: the run's own for a trial without changed settings."""
    if not values:
        return run.local_or_uri()
    return run.local_or_uri(f"trials/{trial_name(values)}")


def trial_name(values: Mapping[str, Any]) -> str:
    """Return settings as a folder name."""
    words = (f"{key.removeprefix('space_evolution.')}={value}" for key, value in values.items())
    return ",".join("".join(char if char.isalnum() or char in "._-=" else "_" for char in word) for word in words)


def whereabouts(run: Run, index: int) -> str | None:
    """Return a trial's state in an unfinished iteration, in a few words; None if it has written nothing."""
    try:
        here = iteration_run(run, index)
        epochs = here.preset.recipe.epochs
        archs = run.read_yaml("space_evolution.yaml", "settings")["settings"]["settings"]["archs"]
        scored = here.store.read("scores", ["arch"]).num_rows
        epoch = max(here.store.read("training", ["epoch"])["epoch"].to_pylist(), default=0)
    except UserError:  # it has not begun, or has no preset yet
        return None
    at = f"{scored:,} of {archs:,} subnets scored" if scored else f"epoch {epoch} of {epochs}"
    return f"iteration {index}: {at}"


@contextmanager
def showing_iterations(
    run: Run, combinations: Sequence[Mapping[str, Any]], progress: Reporter
) -> Iterator[Callable[[Trial], str | None]]:
    """Show each iteration that trials finish during the block.

    Yields:
        A function that returns a running trial's state in a few words.
    """
    folders = {trial_folder(run, values): trial_name(values) for values in combinations}
    shown = {folder: len(_iterations(folder)) for folder in folders}

    def look() -> None:
        for folder, name in folders.items():
            start = f"{name}: " if name else ""
            with suppress(RunDirError):  # not begun, or unreadable just now; read again later
                for iteration in _iterations(folder)[shown[folder] :]:
                    settings = Run(folder).read_yaml("space_evolution.yaml", "settings")["settings"]["settings"]
                    for line in explain(iteration, validate(SpaceEvolutionConfig, Document(settings, folder))):
                        progress(f"{start}{line}")
                    shown[folder] += 1

    def state(trial: Trial) -> str | None:
        folder = trial_folder(run, trial.values)
        with suppress(RunDirError):
            return whereabouts(Run(folder), shown[folder])
        return None

    with progress.polling(look, POLL_S):
        yield state
    look()


def _iterations(folder: str) -> list[Iteration]:
    try:
        return read_iterations(Run(folder))
    except RunDirError:  # not begun, or unreadable just now; read again later
        return []
