"""The file of a study in a run directory, in Optuna's own storage: `optuna.load_study` and optuna-dashboard read it.

The driver works on a copy in memory, and publishes it after each change as a whole: readers see the study before it or
after it, and so does the next attempt if the driver is killed.
"""

from __future__ import annotations

import sqlite3
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import optuna
from optuna.storages import RDBStorage, get_storage
from optuna.study import StudyDirection
from sqlalchemy.pool import StaticPool

from raynas.errors import RunDirError, reason
from raynas.runs.run import Run

STUDY = "study.db"

_BUSY_S = 60.0  # a reader may hold the file for a moment


class StudyFile:
    """A study in memory and its file.

    Args:
        directions: `max` or `min` of each objective, by its name.

    Attributes:
        is_new: True if there was no file.

    Raises:
        RunDirError: the file cannot be read, or is another study's.
    """

    def __init__(self, run: Run, directions: Mapping[str, str]):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._run = run
        self.is_new = not run.exists(STUDY)
        self._memory = sqlite3.connect(":memory:", check_same_thread=False)
        advice = "move it away: it is made again from the rows"
        known = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}
        wanted = [known[direction] for direction in directions.values()]
        try:
            if not self.is_new:
                self._load()
            engine = {"creator": lambda: self._memory, "poolclass": StaticPool}
            self.storage = get_storage(RDBStorage("sqlite://", engine_kwargs=engine))
            self.study = optuna.create_study(
                storage=self.storage, study_name=study_name(run), directions=wanted, load_if_exists=True
            )
            found = self.study.directions
        except (sqlite3.Error, RuntimeError, optuna.exceptions.OptunaError) as error:
            raise RunDirError(f"{run.name}/{STUDY} cannot be read ({reason(error)}): {advice}") from error
        if found != wanted:
            raise RunDirError(f"{run.name}/{STUDY} has other objectives: {advice}")
        if self.is_new:
            _name(self.study, directions)

    def publish(self) -> None:
        """Write the study to its file, whole or not at all."""
        path = self._run.path
        if path is None or not (path / STUDY).exists():
            with tempfile.TemporaryDirectory() as folder:
                self._copy(Path(folder) / STUDY)
                self._run.write_bytes(STUDY, (Path(folder) / STUDY).read_bytes())
        else:  # in place, for readers that have it open; if this is interrupted, SQLite restores the old content
            self._copy(path / STUDY)

    def _copy(self, path: Path) -> None:
        file = sqlite3.connect(path, timeout=_BUSY_S)
        try:
            self._memory.backup(file)
        finally:
            file.close()

    def _load(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = self._run.path
            if path is None:
                path = Path(folder)
                (path / STUDY).write_bytes(self._run.read_bytes(STUDY))
            file = sqlite3.connect(path / STUDY, timeout=_BUSY_S)
            try:
                file.backup(self._memory)
            finally:
                file.close()


def _name(study: optuna.Study, objectives: Iterable[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names are experimental
        study.set_metric_names(list(objectives))


def study_name(run: Run) -> str:
    """Return the name of the study of a run directory: that of its folder."""
    return run.name.rstrip("/").rpartition("/")[2]


def load_study(run: Run) -> optuna.Study:
    """Return the study of a run directory, for reading: changes to it are not kept.

    Raises:
        RunDirError: there is none.
    """
    run.require(STUDY, "it is no tuning (raynas tune)")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / STUDY
        path.write_bytes(run.read_bytes(STUDY))
        stored = optuna.load_study(study_name=None, storage=f"sqlite:///{path}")
        memory = optuna.create_study(study_name=stored.study_name, directions=stored.directions)
        memory.add_trials(stored.trials)
        _name(memory, stored.metric_names or ())
    return memory
