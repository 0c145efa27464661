"""Space evolutions as a Ray Tune experiment: one trial, or several settings side by side.

A trial itself holds no CPU; its Ray Train workers and later its scoring replicas do, never both at once. Workers come
all together or not at all, and one replica suffices, so trials beyond the cluster's room wait and do not block others.
The state of a trial is in its run directory: a killed trial resumes in its current iteration.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raynas.cluster.connection import is_local, ray_cluster
from raynas.cluster.nodes import HEAD, living_nodes
from raynas.cluster.resources import Resources
from raynas.comparison import best_first
from raynas.config import Document, validate
from raynas.errors import UserError
from raynas.outer.evolution.measure import evolve_preset, prepare
from raynas.outer.evolution.record import Iteration, best_iterations, read_iterations
from raynas.outer.evolution.searches import search_spaces
from raynas.outer.trial_progress import showing_trials, trial_folder, trial_name
from raynas.presets.preset import Preset, override
from raynas.progress.reporter import Progress, Reporter, reporter, silent
from raynas.runs.run import Run
from raynas.runs.settings import begin, has_begun

EXPERIMENT = "tune"
"""Folder of Tune's own files in the run directory, for `tensorboard --logdir <run>/tune`."""

METRIC = "lowest_error"
COLUMNS = {
    "iteration": "iteration",
    "error": "E-T error",
    "standard_error": "±",
    "top": "top tier",
    "best_error": "best",
    "mean_macs": "mean MACs",
    METRIC: "lowest E-T",
}
"""Columns of the progress table, by reported metric."""

_TABLE_S = 30  # seconds between two progress tables


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
    """Evolve a preset's space as trials of Ray Tune, or go on with them; see `raynas.evolve_space`."""
    if not resources.workers:
        raise UserError("a trial trains with Ray Train workers: workers must be at least 1, not 0")
    progress = reporter(progress)
    values = {key: list(listed) for key, listed in (values or {}).items()}
    if trials is not None and not values:
        raise UserError("nothing to suggest values for: give lists of them (--try space_evolution.tau=[0.2,0.4])")
    if trials is not None and at_a_time is not None:
        raise UserError("suggestions depend on the results of earlier trials: give trials or at_a_time, not both")
    from raynas.phases.images import check_images
    from raynas.phases.look_elsewhere import see_with

    combinations = _combinations(values)
    if trials is not None and trials > len(combinations):
        raise UserError(f"there are only {len(combinations)} combinations: leave out trials to try all of them")
    folders = [trial_name(combination) for combination in combinations]
    if twice := [folder for folder, count in Counter(folders).items() if count > 1]:
        raise UserError(f"values: several combinations have the name {twice[0]}: give values with different names")
    if not has_begun(run_dir, "trials"):
        check_images(preset, progress, see_with(resources))
    notes: dict[str, None] = {}  # without duplicates: all trials note what they have in common
    spaces: list[dict[str, Any]] = []  # without duplicates
    for combination in combinations:
        space, _ = prepare(override(preset, combination), resources, lambda line: notes.setdefault(line))
        if (definition := space.to_dict()) not in spaces:
            spaces.append(definition)
    for note in notes:
        progress(note)
    os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")  # trials read relative paths from where this process does
    # Otherwise Tune would keep its Ctrl-C handler for the life of this process.
    os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
    need = int(resources.together["CPU"])
    room = max(need, (os.cpu_count() or 1) // need * need) if at_a_time is None else need * at_a_time
    run = Run(run_dir, create=True)
    with run.lock():
        # Spaces by content: a file may have other names, or change.
        common = preset.model_dump(mode="json", exclude={"space", "reference"})
        numbered = {str(number): definition for number, definition in enumerate(spaces)}
        if not begin(run, "trials", {"preset": common, "values": values, "suggested": trials, "spaces": numbered}):
            run.delete(EXPERIMENT)  # else Tune would resume an experiment of other settings that left no results
    # The experiment has a lock of its own, since a single trial takes the lock of the run directory.
    with Run(run.local_or_uri(EXPERIMENT), create=True).lock(), ray_cluster(cpus=room):
        side_by_side = 1 if trials else _side_by_side(at_a_time, resources.together)
        errors = _tune(preset, run, values, trials, resources, side_by_side, progress)
        found = _tried(run, values, errors)
        # Here and not in the trials, since Tune does not restart trials that have ended.
        for trial in found if search else []:
            if trial.error is None:
                search_spaces(trial.run, resources, progress)
    return found


def _combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def _side_by_side(at_a_time: int | None, need: Mapping[str, float]) -> int:
    """Return how many trials run at a time: by default as many as there is room for now, at least one.

    Raises:
        UserError: more are asked for than a local Ray, which does not grow, has room for.
    """
    import ray

    have = ray.cluster_resources()
    room = min(int(have.get(name, 0) // amount) for name, amount in need.items())
    if at_a_time is not None and at_a_time > max(1, room) and is_local():
        each = " and ".join(f"{amount:g} {name}" for name, amount in need.items())
        raise UserError(f"there is room for {room} trial(s) of {each} at a time, not {at_a_time}")
    return at_a_time or max(1, room)


def _tune(
    preset: Preset,
    run: Run,
    values: Mapping[str, Sequence[Any]],
    trials: int | None,
    resources: Resources,
    side_by_side: int,
    progress: Reporter,
) -> dict[str, str]:
    """Run the experiment to its end, and return errors of failed trials by name (see `named`)."""
    from ray import tune
    from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

    written, folder = preset.model_dump(mode="json"), run.uri

    def trial(config: dict[str, Any]) -> None:
        """Carry out a trial; a nested function, since Ray pickles it by value."""
        from raynas.outer.evolution.trials import work

        work(written, folder, config, resources)

    trainable = tune.with_resources(trial, _beside_the_driver())
    table = tune.CLIReporter(metric_columns=COLUMNS, parameter_columns=list(values), max_report_frequency=_TABLE_S)
    path = run.at(EXPERIMENT)
    if tune.Tuner.can_restore(path, storage_filesystem=run.filesystem):
        progress(f"going on with the experiment in {run.name}")
        tuner = tune.Tuner.restore(path, trainable, resume_errored=True, storage_filesystem=run.filesystem)
    else:
        search = None
        if trials is None:
            space = {key: tune.grid_search(listed) for key, listed in values.items()}
        else:
            from ray.tune.search.optuna import OptunaSearch

            space = {key: tune.choice(listed) for key, listed in values.items()}
            search = OptunaSearch(metric=METRIC, mode="min", seed=preset.space_evolution.seed)
        tuner = tune.Tuner(
            trainable,
            param_space=space,
            tune_config=tune.TuneConfig(
                num_samples=trials or 1, search_alg=search, max_concurrent_trials=side_by_side,
                trial_name_creator=_name, trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT, storage_path=run.root, storage_filesystem=run.filesystem,
                verbose=0 if progress.silent else 1, progress_reporter=table,
                callbacks=[TBXLoggerCallback(), JsonLoggerCallback()],
            ),
        )  # fmt: skip
    for module in ("execution.tune_controller", "tune"):  # without their tracebacks; one line is shown below
        logging.getLogger(f"ray.tune.{module}").setLevel(logging.CRITICAL)
    with showing_trials(run, _combinations(values), resources.together, progress):
        results = tuner.fit()
    errors = {}
    for i in range(len(results)):
        if (result := results[i]).error is not None:
            cause = getattr(result.error, "cause", None) or result.error
            errors[trial_name(result.config or {})] = str(cause).strip().splitlines()[-1]
    for name, why in errors.items():
        progress(f"{name or 'the evolution'} failed: {why}")
    return errors


def _beside_the_driver() -> dict[str, float]:
    """Return the resources of a trial's own process, which Tune does not schedule if it asks for nothing.

    On a cluster's head, which is not lost alone, they keep trials there.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    on_head = any(node.is_head for node in living_nodes() if node.id == here)
    return {"CPU": 0, HEAD: 0.001} if on_head else {"CPU": 0, "memory": 1}


def _name(trial: Any) -> str:
    return f"{trial_name(trial.config) or 'evolution'}-{trial.trial_id}"


def work(written: Mapping[str, Any], folder: str, values: Mapping[str, Any], resources: Resources) -> None:
    """Carry out a trial, in its own process.

    Args:
        written: the preset as plain values.
        folder: run directory of the experiment.
    """
    from ray import tune

    preset = override(validate(Preset, Document(dict(written), "preset")), values)
    lowest = math.inf

    def report(iteration: Iteration) -> None:
        nonlocal lowest
        lowest = min(lowest, iteration.quality.error)
        tune.report(metrics(iteration, lowest))

    run = Run(folder, create=True)
    evolve_preset(preset, trial_folder(run, values), resources, print, report)


def metrics(iteration: Iteration, lowest: float) -> dict[str, Any]:
    """Return the metrics that a trial reports after an iteration; errors between 0 and 1."""
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
        METRIC: lowest,
    }


def tried_folders(run: Run) -> list[tuple[dict[str, Any], str]]:
    """Return the changed settings and the folder of each possible trial of a run; empty if it is no experiment."""
    file = "trials.yaml"
    values = run.read_yaml(file, "settings")["settings"]["values"] if run.exists(file) else {}
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
