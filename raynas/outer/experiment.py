"""An experiment: trials side by side as Ray Tune trials, each in a folder of its own, with rows of what came of it.

Space evolution, ablation and tuning differ in who proposes the trials (`Proposer`) and in what is done in one (`Work`).
The rows are all that an experiment is resumed from: table `trials` has one when a trial begins and one when it ends,
the newest of a number counts, and table `trial_steps` has the values on the way. The driver alone writes them. Trials
that a killed driver left unfinished are carried on first, each from its own folder, and none is repeated. Ray Tune's
snapshots are not read: each attempt is a new Tune experiment in `tune/<attempt>`.

A trial whose training has Ray Train workers holds no CPU itself; its workers and later its scoring replicas do, never
both at once. Workers come all together or not at all, and one replica suffices, so trials beyond the cluster's room
wait and do not block others. Without workers the trial's own process computes, and holds the resources of one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from raynas.cluster.connection import environment, is_local, ray_cluster, unless_set
from raynas.cluster.growth import WAIT_S, check_this_machine, room_for
from raynas.cluster.nodes import HEAD, living_nodes
from raynas.cluster.resources import Resources
from raynas.errors import UserError
from raynas.outer.course import TUNE, Course
from raynas.outer.trials import Proposer, Stop, Trial, read_trials
from raynas.outer.work import Named, Work
from raynas.progress.reporter import Progress, reporter, silent
from raynas.runs.run import Run
from raynas.text import duration

_POLL_S = 2.0
_IN_OUR_HANDS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the command as everywhere; Tune would keep its handler
    "RAY_AIR_NEW_OUTPUT": "0",  # trials are shown in lines of ours, which Tune's table would break
}
"""Settings of Ray Tune, on clusters, too, unless the user's environment has others."""


def run_experiment(
    run: Run,
    proposer: Proposer,
    work: Work,
    resources: Resources,
    stop: Stop | None = None,
    at_a_time: int | None = None,
    progress: Progress = silent,
    state: Callable[[Trial], str | None] = lambda trial: None,
) -> list[Trial]:
    """Carry out the trials of an experiment, or go on with them, and return all of them by their numbers.

    Args:
        work: what is done in each; it is pickled.
        at_a_time: trials side by side; None for as many as the cluster has room for.
        state: returns how far a running trial is, in a few words, for what is shown meanwhile.

    Raises:
        RunDirError: another process carries the experiment out.
        UserError: a local Ray has no room for so many trials, or none ran for `WAIT_S` because a cluster lacks what
            one needs.
    """
    show = reporter(progress)
    # A lock of its own, since a trial that has the run directory to itself takes the lock of that.
    with Run(run.local_or_uri(TUNE), create=True).lock():
        course = Course(run, proposer, stop or Stop(), show)
        first = course.propose()
        if first is None:
            return read_trials(run)
        course.put_back(first)
        with environment(unless_set(_IN_OUR_HANDS)), ray_cluster(_cpus(resources, at_a_time), dashboard=True):
            check_this_machine(resources.of(1), "a trial needs", "use fewer")
            course.limit = _limit(resources, at_a_time)
            doing = show.doing("trials", stop.trials if stop else None)
            with doing as activity, show.polling(lambda: course.show(activity, needed(resources), state), _POLL_S):
                course.show(activity, needed(resources), state)  # at once, so that earlier trials are not of its pace
                while not _tune(course, work, resources):
                    course.begin_again()
            if course.lack is not None:
                raise UserError(
                    f"a trial needs {course.lack}; waited {duration(WAIT_S)}: use fewer, or a larger cluster"
                )
    return read_trials(run)


def needed(resources: Resources) -> dict[str, float]:
    """Return what a trial holds at most, by Ray's names."""
    return resources.of(max(resources.most_workers, resources.replicas) + (not resources.workers))


def _cpus(resources: Resources, at_a_time: int | None) -> int:
    """Return the CPUs of a local Ray."""
    need = int(needed(resources)["CPU"])
    return max(need, (os.cpu_count() or 1) // need * need) if at_a_time is None else need * at_a_time


def _limit(resources: Resources, at_a_time: int | None) -> Callable[[], int]:
    """Return a function that says how many trials may run now; refuse more than a local Ray can hold."""
    count = max(resources.most_workers, resources.replicas) + (not resources.workers)

    def room() -> int:
        return max(1, room_for(resources.of(1), count))

    if at_a_time is None:
        return room
    if is_local() and at_a_time > (most := room()):
        each = " and ".join(f"{amount:g} {name}" for name, amount in needed(resources).items())
        raise UserError(f"there is room for {most} trial(s) of {each} at a time, not {at_a_time}")
    return lambda: at_a_time


def _tune(course: Course, work: Work, resources: Resources) -> bool:
    """Run an attempt as a Ray Tune experiment, and return True at its end.

    Tune breaks off when Ray ends a trial's process for want of memory. It returns False then: another attempt carries
    the other trials on.
    """
    import ray
    from ray import tune
    from ray.exceptions import OutOfMemoryError
    from ray.tune.logger import JsonLoggerCallback, TBXLoggerCallback

    from raynas.outer.tune_parts import Stopping, Suggesting, Watching

    run, folder = course.run, course.run.uri

    def trial(config: dict[str, Any]) -> dict[str, Any]:
        """Carry out a trial; a nested function, since Ray pickles it by value."""
        from raynas.outer.work import carry_out_trial

        return carry_out_trial(work, folder, config)

    trial.__mixins__ = (Named,)  # type: ignore[attr-defined]
    if is_local():  # without tracebacks of failed trials, which are in their folders; one line is shown
        for module in ("execution.tune_controller", "tune"):
            logging.getLogger(f"ray.tune.{module}").setLevel(logging.CRITICAL)
    watching = Watching(course)
    tuner = tune.Tuner(
        tune.with_resources(trial, _beside_the_driver() if resources.workers else resources.of(1)),
        tune_config=tune.TuneConfig(
            num_samples=-1, search_alg=Suggesting(course), trial_name_creator=_name, trial_dirname_creator=_name
        ),
        run_config=tune.RunConfig(
            name=str(course.attempt), storage_path=run.at(TUNE), storage_filesystem=run.filesystem, verbose=0,
            stop=Stopping(course), callbacks=[TBXLoggerCallback(), JsonLoggerCallback(), watching],
        ),
    )  # fmt: skip
    try:
        tuner.fit()
        return True
    except RuntimeError as error:
        if not isinstance(error.__cause__, OutOfMemoryError):
            raise
        watching.end_killed()
        return False
    finally:  # the driver may go on for long after an interruption
        for actor in watching.actors():
            ray.kill(actor)


def _beside_the_driver() -> dict[str, float]:
    """Return the resources of a trial's own process, which Tune does not schedule if it asks for nothing.

    On a cluster's head, which is not lost alone, they keep trials there.
    """
    import ray

    here = ray.get_runtime_context().get_node_id()
    on_head = any(node.is_head for node in living_nodes() if node.id == here)
    return {"CPU": 0, HEAD: 0.001} if on_head else {"CPU": 0, "memory": 1}


def _name(trial: Any) -> str:
    return f"{trial.config['trial'] or 'trial'}-{trial.trial_id}"
