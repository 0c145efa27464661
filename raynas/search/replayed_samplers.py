"""Samplers for Optuna whose state is read from the trials of the study alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, CmaEsSampler
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial

PLACE = "grid:place"
"""Attribute of a trial: its place in the shuffled grid."""


class GridSampler(BaseSampler):
    """Each combination of a grid once, in a shuffled order that depends on the seed alone.

    Optuna's sampler of this name ends a study in a way that only `Study.optimize` understands, tries combinations twice
    that differ in an inactive parameter, and takes a trial's number for its place.
    """

    def __init__(self, combinations: Sequence[Mapping[str, Any]], seed: int):
        """Shuffle the combinations.

        Args:
            combinations: values by name, of the active parameters of each combination.
            seed: seed of the order.
        """
        order = np.random.default_rng(seed).permutation(len(combinations))
        self._combinations = [combinations[place] for place in order]

    def left(self, study: Study) -> int:
        """Return the number of combinations that no trial of the study has had yet."""
        trials = study._storage.get_all_trials(study._study_id, deepcopy=False)  # a pruner's view may lack some
        places = [trial.system_attrs.get(PLACE, -1) for trial in trials]
        return len(self._combinations) - 1 - max(places, default=-1)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Give the trial the next combination; not to one whose values are given (`Study.enqueue_trial`)."""
        if "fixed_params" not in trial.system_attrs and (left := self.left(study)):
            place = len(self._combinations) - left
            study._storage.set_trial_system_attr(trial._trial_id, PLACE, place)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return nothing: values are given one by one."""
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return nothing: values are given one by one."""
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the combination's value.

        Raises:
            ValueError: there are no combinations left.
        """
        if PLACE not in trial.system_attrs:
            raise ValueError(f"all {len(self._combinations)} combinations of the grid have been tried")
        return self._combinations[trial.system_attrs[PLACE]][param_name]


class ReplayedCmaEsSampler(CmaEsSampler):
    """CMA-ES that tells its optimizer all earlier generations again for each trial.

    Optuna's keeps the optimizer in the study as a pickle, and unpickles whatever it finds there. Replaying costs less
    than a millisecond for a generation.
    """

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> None:
        self._completed = sorted(completed_trials, key=lambda trial: (trial.datetime_complete, trial.number))

    def _init_optimizer(self, trans: Any, direction: StudyDirection) -> Any:
        optimizer = super()._init_optimizer(trans, direction)
        sign = 1 if direction == StudyDirection.MINIMIZE else -1
        while True:
            told = self._get_solution_trials(self._completed, optimizer.generation)[: optimizer.population_size]
            if len(told) < optimizer.population_size:
                return optimizer
            optimizer.tell([(self._place(trial, trans), sign * cast(float, trial.value)) for trial in told])

    def _place(self, trial: FrozenTrial, trans: Any) -> np.ndarray:
        if "x_for_tell" in trial.system_attrs:  # as drawn, before it was rounded
            return np.array(trial.system_attrs["x_for_tell"])
        place: np.ndarray = trans.transform(trial.params)
        return place
