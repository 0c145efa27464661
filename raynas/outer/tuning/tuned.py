"""The outcome of a tuning: its trials, the best of them, and its study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from raynas.outer.trials import Trial, read_trials
from raynas.runs.run import Run
from raynas.search.objectives import non_dominated

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Tuned:
    """A tuning, finished or not.

    Attributes:
        run: its run directory.
        objectives: `max` or `min` by objective.
    """

    run: Run
    objectives: Mapping[str, str]

    @cached_property
    def trials(self) -> list[Trial]:
        """All trials, by their numbers."""
        return read_trials(self.run)

    @cached_property
    def best_first(self) -> list[Trial]:
        """The finished trials, the best first; with several objectives those that no other one beats in all."""
        known = [trial for trial in self.trials if trial.state == "finished"]
        if len(self.objectives) > 1:
            kept = non_dominated(np.array([self._losses(trial) for trial in known]).reshape(-1, len(self.objectives)))
            known = [trial for trial, is_kept in zip(known, kept, strict=True) if is_kept]
        return sorted(known, key=self._losses)

    @property
    def best(self) -> Trial | None:
        """The best trial, of equal ones the first; with several objectives the best by the first of them."""
        return next(iter(self.best_first), None)

    @property
    def summary(self) -> str:
        """The numbers of trials by state, in words."""
        states = [trial.state for trial in self.trials]
        return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))

    def study(self) -> optuna.Study:
        """Return the study of Optuna, for its plots and analyses; changes to it are not kept."""
        from raynas.outer.tuning.study_file import load_study

        return load_study(self.run)

    def _losses(self, trial: Trial) -> tuple[float, ...]:
        signs = {"max": -1.0, "min": 1.0}
        return tuple(signs[direction] * trial.results[name] for name, direction in self.objectives.items())


def read_tuned(run: Run) -> Tuned | None:
    """Return the tuning of a run directory; None if it has none."""
    objectives = run.tuned
    return None if objectives is None else Tuned(run, objectives)
