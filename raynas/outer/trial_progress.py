"""Where the trials of an experiment write, and telling what they have written while they run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raynas.config import Document, validate
from raynas.errors import RunDirError, UserError
from raynas.outer.evolution.explain import explain
from raynas.outer.evolution.record import Iteration, iteration_folder, read_iterations
from raynas.presets.space_evolution import SpaceEvolutionConfig
from raynas.runs.run import Run

_POLL_S = 5.0  # between two looks at what the trials have written
_WHERE_S = 15.0  # between two lines that say where they are


def trial_folder(run: Run, values: Mapping[str, Any]) -> str:
    """Where a trial's run directory is: the run's own for the one that differs in nothing."""
    if not values:
        return run.local_or_uri()
    return run.local_or_uri(f"trials/{trial_name(values)}")


def trial_name(values: Mapping[str, Any]) -> str:
    """Values as a word that a folder can have."""
    words = (f"{key.removeprefix('space_evolution.')}={value}" for key, value in values.items())
    return ",".join("".join(char if char.isalnum() or char in "._-=" else "_" for char in word) for word in words)


def whereabouts(run: Run, index: int) -> str | None:
    """What a trial does in an iteration that is not over, in a few words; None where nothing of it is there."""
    try:
        here = Run(run.local_or_uri(iteration_folder(index)))
        epochs = here.preset.recipe.epochs
        archs = run.read_yaml("space_evolution.yaml", "settings")["settings"]["settings"]["archs"]
        scored = here.store.read("scores", ["arch"]).num_rows
        epoch = max(here.store.read("training", ["epoch"])["epoch"].to_pylist(), default=0)
    except UserError:  # it has not begun, or has no preset yet
        return None
    at = f"{scored:,} of {archs:,} subnets scored" if scored else f"epoch {epoch} of {epochs}"
    return f"iteration {index}: {at}"


class TrialProgress:
    """A thread of the driver that tells each iteration of each trial once it is over, as the trial's log does.

    Meanwhile it says how far they are.
    """

    def __init__(self, run: Run, combinations: Sequence[Mapping[str, Any]], say: Callable[[str], None]):
        self._folders = {trial_folder(run, values): trial_name(values) for values in combinations}
        self._say = say
        self._told: Counter[str] = Counter()
        self._where: dict[str, str | None] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raynas-trials", daemon=True)

    def __enter__(self) -> None:
        for folder in self._folders:
            self._told[folder] = len(self._iterations(folder))
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        said = time.monotonic()
        while not self._stop.wait(_POLL_S):
            self._tell()
            if time.monotonic() - said >= _WHERE_S:
                self._tell_where()
                said = time.monotonic()
        self._tell()

    def _tell_where(self) -> None:
        for folder, name in self._folders.items():
            try:
                where = whereabouts(Run(folder), self._told[folder])
            except RunDirError:  # it has not begun
                continue
            if where is not None and where != self._where.get(folder):
                self._say(f"{name}: {where}" if name else f"  {where}")
            self._where[folder] = where

    def _tell(self) -> None:
        for folder, name in self._folders.items():
            for iteration in self._iterations(folder)[self._told[folder] :]:
                self._told[folder] += 1
                settings = Run(folder).read_yaml("space_evolution.yaml", "settings")["settings"]["settings"]
                for line in explain(iteration, validate(SpaceEvolutionConfig, Document(settings, folder))):
                    self._say(f"{name}: {line}" if name else line)

    @staticmethod
    def _iterations(folder: str) -> list[Iteration]:
        try:
            return read_iterations(Run(folder))
        except RunDirError:  # it has not begun, or cannot be read just now: the next look will tell
            return []
