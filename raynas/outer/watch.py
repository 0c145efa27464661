"""Where the trials of an experiment write, and telling what they have written while they run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raynas.config import Document, validate
from raynas.errors import RunDirError
from raynas.outer.config import SpaceEvolutionConfig
from raynas.outer.explain import explain
from raynas.outer.record import Iteration, read_iterations
from raynas.results import RunDir

_POLL_S = 5.0  # between two looks at what the trials have written


def trial_folder(run: RunDir, values: Mapping[str, Any]) -> str:
    """Where a trial's run directory is: the run's own for the one that differs in nothing."""
    if not values:
        return run.local_or_uri()
    return run.local_or_uri(f"trials/{named(values)}")


def named(values: Mapping[str, Any]) -> str:
    """Values as a word that a folder can have."""
    words = (f"{key.removeprefix('space_evolution.')}={value}" for key, value in values.items())
    return ",".join("".join(char if char.isalnum() or char in "._-=" else "_" for char in word) for word in words)


class Teller:
    """A thread of the driver that tells each iteration of each trial once it is over, as the trial's log does."""

    def __init__(self, run: RunDir, combinations: Sequence[Mapping[str, Any]], say: Callable[[str], None]):
        self._folders = {trial_folder(run, values): named(values) for values in combinations}
        self._say = say
        self._told: Counter[str] = Counter()
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
        while not self._stop.wait(_POLL_S):
            self._tell()
        self._tell()

    def _tell(self) -> None:
        for folder, name in self._folders.items():
            for iteration in self._iterations(folder)[self._told[folder] :]:
                self._told[folder] += 1
                settings = RunDir(folder).read_yaml("space_evolution.yaml", "settings")["settings"]["settings"]
                for line in explain(iteration, validate(SpaceEvolutionConfig, Document(settings, folder))):
                    self._say(f"{name}: {line}" if name else line)

    @staticmethod
    def _iterations(folder: str) -> list[Iteration]:
        try:
            return read_iterations(RunDir(folder))
        except RunDirError:  # it has not begun, or cannot be read just now: the next look will tell
            return []
