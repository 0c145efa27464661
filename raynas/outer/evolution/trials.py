"""Space evolutions as an experiment: one trial, or several settings side by side.

The state of a trial is in its run directory: a killed trial resumes in its current iteration.
"""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raynas.cluster.connection import ray_cluster
from raynas.cluster.resources import Resources
from raynas.comparison import best_first
from raynas.config import validate
from raynas.documents import Document
from raynas.errors import UserError
from raynas.outer import trials as rows
from raynas.outer.evolution.loop import evolve_space
from raynas.outer.evolution.measure import by_supernet, constraints_of, prepare
from raynas.outer.evolution.progress import showing_iterations, trial_folder, trial_name
from raynas.outer.evolution.record import Iteration, best_iterations, iteration_run, read_iterations
from raynas.outer.experiment import run_experiment
from raynas.outer.trials import TRIALS, Listed, Proposed, Proposer, Wait
from raynas.outer.tuning.study import Study
from raynas.outer.tuning.study_file import STUDY
from raynas.outer.work import Report
from raynas.phases.search import search_fully
from raynas.phases.where import placed
from raynas.presets.preset import Preset, override
from raynas.presets.tune import Param, TuneConfig
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun

METRIC = "lowest_error"


@dataclass(frozen=True)
class Trial:
    """A finished or failed trial.

    Attributes:
        values: settings that differ from the preset, by dotted key.
        error: reason of the failure; None for a finished trial.
    """

    values: Mapping[str, Any]
    run: Run
    iterations: Sequence[Iteration]
    error: str | None = None

    @property
    def best(self) -> Iteration:
        """The iteration of the lowest E-T error; see `best_iterations`."""
        return best_iterations(self.iterations)[0]


def run_trials(
    preset: Preset,
    run_dir: Run | str | os.PathLike[str],
    resources: Resources,
    values: Mapping[str, Sequence[Any]] | None = None,
    trials: int | None = None,
    at_a_time: int | None = None,
    search: bool = False,
    progress: Progress = silent,
) -> list[Trial]:
    """Evolve a preset's space as trials of an experiment, or go on with them; see `raynas.evolve_space`."""
    resources = placed(resources, several=True)
    if not resources.workers:
        raise UserError("a trial trains with Ray Train workers: workers must be at least 1, not 0")
    progress = reporter(progress)
    values = {key: list(listed) for key, listed in (values or {}).items()}
    if trials is not None and not values:
        raise UserError("nothing to suggest values for: give lists of them (--try space_evolution.tau=[0.2,0.4])")
    if trials is not None and at_a_time is not None:
        raise UserError("suggestions depend on the results of earlier trials: give trials or at_a_time, not both")
    from raynas.phases.images import check_images

    combinations = _combinations(values)
    if trials is not None and trials > len(combinations):
        raise UserError(f"there are only {len(combinations)} combinations: leave out trials to try all of them")
    folders = [trial_name(combination) for combination in combinations]
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        raise UserError(f"values: several combinations have the name {twice[0]}: give values with different names")
    if not has_begun(run_dir, "trials"):
        check_images(preset, resources, progress)
    notes: dict[str, None] = {}  # without duplicates: all trials note what they have in common
    spaces: list[dict[str, Any]] = []  # without duplicates
    for combination in combinations:
        space, _ = prepare(override(preset, combination), resources, lambda line: notes.setdefault(line))
        if (definition := space.to_dict()) not in spaces:
            spaces.append(definition)
    for note in notes:
        progress(note)
    run = Run(run_dir, create=True)
    with run.lock():
        # Spaces by content: a file may have other names, or change.
        common = preset.model_dump(mode="json", exclude={"space", "fix", "reference", "tune"})
        numbered = {str(number): definition for number, definition in enumerate(spaces)}
        settings = {"preset": common, "values": values, "suggested": trials, "spaces": numbered}
        if not begin(run, "trials", settings):  # else rows of other settings, which left no results, would count
            run.delete("tables/trials")
            run.delete(STUDY)
    proposer: Proposer
    if trials is None:
        named = enumerate(zip(folders, combinations, strict=True))
        proposer = Listed([Proposed(number, *each, f"{TRIALS}/{each[0]}" if each[0] else "") for number, each in named])
    else:
        proposer = Suggested(run, values, trials, preset.space_evolution.seed)
        at_a_time = 1
    work = partial(evolve_trial, preset.model_dump(mode="json"), resources)
    with showing_iterations(run, combinations, progress) as state:
        found = run_experiment(run, proposer, work, resources, None, at_a_time, progress, state)
    failed = {trial.name: str(trial.reason) for trial in found if trial.state == "failed"}
    tried = _tried(run, values, failed)
    if search:
        with ray_cluster(cpus=int(resources.together["CPU"])):
            for trial in tried:
                if trial.error is None:
                    search_spaces(trial.run, resources, progress)
    return tried


class Suggested(Proposer):
    """A proposer of some of all combinations, one after the other, by Optuna.

    Trials that failed under an earlier command are tried again first.
    """

    def __init__(self, run: Run, values: Mapping[str, Sequence[Any]], trials: int, seed: int):
        params = {key: Param(choices=list(listed)) for key, listed in values.items()}
        config = TuneConfig(params=params, objectives={METRIC: "min"}, seed=seed)
        self._study = Study(run, config, name=lambda number, values: trial_name(values))
        self._left, self._begun = trials, False
        self._again: list[rows.Trial] = []

    def ask(self) -> Proposed | Wait | None:
        self._begun = True
        if self._again:
            return self._again.pop(0)
        self._left -= 1
        return self._study.ask() if self._left >= 0 else None

    def tell(self, trial: rows.Trial) -> None:
        if self._begun:
            self._study.tell(trial)
            return
        self._left -= 1
        if trial.state == "failed":
            self._again.append(trial)
            trial = replace(trial, state="running")
        self._study.tell(trial)


def _combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def evolve_trial(
    written: Mapping[str, Any], resources: Resources, folder: str, values: Mapping[str, Any], report: Report
) -> dict[str, float]:
    """Carry out a trial, in its own process.

    Args:
        written: the preset as plain values.
    """
    preset = override(validate(Preset, Document(dict(written), "preset")), values)
    lowest = math.inf

    def after_each(iteration: Iteration) -> None:
        nonlocal lowest
        lowest = min(lowest, iteration.quality.error)
        report(iteration.index, lowest, **metrics(iteration))

    space, about = prepare(preset, resources, print)
    run = Run(folder, create=True)
    measure = by_supernet(run, preset, resources, print)
    evolve_space(run, space, preset.space_evolution, measure, constraints_of(preset), about, print, after_each)
    return {METRIC: lowest}


def metrics(iteration: Iteration) -> dict[str, Any]:
    """Return the metrics that a trial reports to TensorBoard after an iteration; errors between 0 and 1."""
    whole = iteration.quality
    return {
        "iteration": iteration.index,
        "error": whole.error,
        "standard_error": whole.standard_error,
        "mean": whole.mean,
        "top": whole.top,
        "best_error": iteration.best["best_error"],
        "best_macs": iteration.best["best_macs"],
        "mean_macs": iteration.mean_macs,
        "log10_archs": math.log10(iteration.space.cardinality()),
        "moves": sum(move.moved for move in iteration.moves),
        "seconds": iteration.seconds,
    }


def tried_folders(run: Run) -> list[tuple[dict[str, Any], str]]:
    """Return the changed settings and the folder of each possible trial of a run; empty if it is no experiment."""
    file = "trials.yaml"
    values = run.read_yaml(file, "settings.values")["settings"]["values"] if run.exists(file) else {}
    return [(each, trial_folder(run, each)) for each in _combinations(values)] if values else []


def _tried(run: Run, values: Mapping[str, Sequence[Any]], errors: Mapping[str, str]) -> list[Trial]:
    ended, failed = [], []
    for combination in _combinations(values):
        there = Run(trial_folder(run, combination), create=True)
        iterations = read_iterations(there)
        if iterations and iterations[-1].ended is not None:
            ended.append(Trial(combination, there, iterations))
        elif (error := errors.get(trial_name(combination))) is not None:
            failed.append(Trial(combination, there, iterations, error))
    if not ended:
        raise UserError(f"{run.name}: no trial has ended; its errors are above. The same command goes on")
    best = [each.best for each in ended]
    order = best_first([each.quality.error for each in best], [[each.mean_macs for each in best]])
    return [ended[index] for index in order] + failed


def search_spaces(run: Run, resources: Resources, progress: Progress = silent) -> None:
    """Run or resume the preset's search in every space of an evolution, with the supernet of each.

    Budget and constraints are the same for all. The iterations' run directories are then as after `raynas search`.

    Args:
        run: run of an evolution, whose iterations are run directories of their own (`iterations/0`).
    """
    for iteration in read_iterations(run):
        here = iteration_run(run, iteration.index)
        preset = here.preset
        progress(f"searching space {iteration.index}, {iteration.space.name}, in {here.name}")
        with here.lock():
            search_fully(here, preset.search, resources, progress=progress)
