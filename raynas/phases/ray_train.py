"""Trainings with Ray Train, one or several at a time: workers wherever the cluster has room, events by mailbox.

The workers' resources are asked for at once, so that a cluster grows for them, and what is missing is shown. Workers
that are lost, with or without their node, are replaced, and training continues from the newest checkpoint, which is in
the run directory. Where the number of workers is a range, it continues with those that there is room for.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from pathlib import Path, PurePosixPath
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import CheckpointConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.api.exceptions import TrainingFailedError

from raynas.cluster.connection import environment, is_local, on_loopback, unless_set
from raynas.cluster.growth import WAIT_S, check_this_machine, describe_shortage, room_for
from raynas.cluster.losses import why_lost
from raynas.cluster.mailbox import CONTROLLER, STARTED, open_mailbox
from raynas.cluster.metrics import set_gauge
from raynas.cluster.resources import Resources
from raynas.cluster.trainer import NamedRun, SendController, trainer
from raynas.errors import ClusterError, ConfigError, TrainingCollapsed, UserError
from raynas.phases.run_context import STATE
from raynas.phases.training_job import Trained, TrainingJob
from raynas.progress.reporter import Progress
from raynas.runs.files import CHECKPOINTS
from raynas.runs.run import Run
from raynas.text import duration, one_line
from raynas.training.context import Event, read_state
from raynas.training.progress import WAITING
from raynas.training.rendezvous import FileRendezvous

ERRORS = {kind.__name__: kind for kind in (ConfigError, TrainingCollapsed, UserError)}
LAST_NEWS_S = 30.0
LOOK_S = 2.0  # seconds between two checks of what the cluster lacks
POLL_S = 0.5
RESIZE_S = 30.0  # between two looks for room for more workers; each change costs a restart
START_S = 10.0  # for the room that there seemed to be; without it their number is chosen anew
INNER = ("trials", "iterations")  # folders of a run directory with others in them
BEYOND = 4  # trainings that wait for a cluster to grow

Take = Callable[[TrainingJob, Event], None]
"""Takes an event of a training."""


def fit(run: Run, job: TrainingJob, resources: Resources, take: Callable[[Event], None], progress: Progress) -> Trained:
    """Train with Ray Train workers to the end.

    Raises:
        UserError: the resources did not come, or training failed for good.
    """
    with closing(fit_all(run, [job], resources, 1, lambda _, event: take(event), progress)) as results:
        _, result = next(results)
    if isinstance(result, Exception):
        raise result
    return result


def fit_all(
    run: Run, jobs: Sequence[TrainingJob], resources: Resources, at_a_time: int | None, take: Take, progress: Progress
) -> Generator[tuple[TrainingJob, Trained | Exception], None, None]:
    """Train with Ray Train workers, several trainings at a time, and yield each as soon as it has ended.

    The rows of all are written by the caller. Each training's controller is waited for by a thread, since Ray Train has
    no other way; everything else happens in the caller's thread.

    Args:
        jobs: trainings with names of their own.
        at_a_time: number of trainings side by side, if there is room; None for as many as the cluster has room for.

    Yields:
        A training, and its result or why it has none. One that fails does not end the others.

    Raises:
        UserError: this machine is too small for one training.
    """
    workers = resources.fewest_workers
    check_this_machine(resources.of(workers), f"{workers} worker(s) need", "use fewer workers")
    if isinstance(resources.workers, tuple) and not hasattr(ScalingConfig, "elasticity_enabled"):
        raise UserError(f"Ray {ray.__version__} trains with a fixed number of workers: give one, or install ray 2.60")
    with environment(_settings(resources)):
        yield from _fit_side_by_side(run, jobs, resources, at_a_time, take, progress)


def _settings(resources: Resources) -> dict[str, str]:
    """Return the environment variables of Ray Train for a training, unless the user's environment has others."""
    # Workers import the user's modules from where they are, and a lost one is soon noticed.
    settings = {"RAY_CHDIR_TO_TRIAL_DIR": "0", "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5"}
    if isinstance(resources.workers, tuple):
        settings["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = str(START_S)
    return unless_set(settings)


def _fit_side_by_side(
    run: Run, jobs: Sequence[TrainingJob], resources: Resources, at_a_time: int | None, take: Take, progress: Progress
) -> Generator[tuple[TrainingJob, Trained | Exception], None, None]:
    waiting, running = deque(jobs), dict[str, _Training]()
    ended: queue.SimpleQueue[_Training] = queue.SimpleQueue()
    news = _News(running, resources, take)
    try:
        while waiting or running:
            while waiting and _has_room(list(running.values()), resources, at_a_time):
                training = _Training(run, waiting.popleft(), resources, news.mailbox, ended.put, progress)
                running[training.job.name] = training
                training.begin()
            try:
                training = ended.get(timeout=POLL_S)
            except queue.Empty:
                news.take()
                continue
            for _ in range(2):  # an answer may have been on its way; the second one has all
                news.take(LAST_NEWS_S)
            if (result := training.result()) is not None:
                del running[training.job.name]
                yield training.job, result
    finally:
        if running:
            news.take(POLL_S)  # may bring a controller
            end(running.values())
        ray.kill(news.mailbox)


def _has_room(running: Sequence[_Training], resources: Resources, at_a_time: int | None) -> bool:
    """Return True if another training may begin.

    A cluster may grow, so that some trainings are begun beyond its room, and ask it for more: at most as many as have
    workers, and a few, since each takes some 0.7 GB of the head's memory.
    """
    if not running:
        return True
    room = room_for(resources.of(1), resources.most_workers)
    if is_local():
        return len(running) < min(at_a_time or room, room)
    if at_a_time is not None:
        return len(running) < at_a_time
    started = sum(one.started for one in running)
    return len(running) < max(room, started + min(max(1, started), BEYOND))


class _Training:
    """A training under way: attempts, each of which ends when training is finished or a worker is lost.

    Args:
        ended: called with this by a thread when an attempt has ended.

    Attributes:
        controller: handle of the attempt's controller, once it has come.
        started: True once workers run.
        error: why the training is to end, such as a user's mistake that a worker found.
    """

    def __init__(
        self,
        run: Run,
        job: TrainingJob,
        resources: Resources,
        mailbox: Any,
        ended: Callable[[_Training], None],
        progress: Progress,
    ):
        self.job = job
        self.error: UserError | None = None
        self._run, self._resources, self._mailbox = run, resources, mailbox
        self._ended, self._progress = ended, progress
        self._failures = self._reached = 0
        self._furthest = -1  # step of the newest known checkpoint or epoch; before any is known
        each = " and ".join(f"{amount:g} {name}" for name, amount in resources.of(1).items())
        progress(f"  starting {resources.shown_workers} Ray Train worker(s) with {each} each")

    def begin(self) -> None:
        """Begin an attempt."""
        self.controller: Any = None
        self.started = False
        self._outcome: Any = None
        threading.Thread(target=self._fit, name=f"raynas-{self.job.name}", daemon=True).start()

    def _fit(self) -> None:
        try:
            with tempfile.TemporaryDirectory() as meeting:
                self._outcome = self._trainer(meeting).fit()
        except BaseException as error:
            self._outcome = error
        self._ended(self)

    def _trainer(self, meeting: str) -> TorchTrainer:
        job, run, mailbox, resources = self.job, self._run.uri, self._mailbox, self._resources

        def work() -> Any:
            """Train, as one worker. Nested, so that neither the controller nor the dashboard gets to see the job."""
            from raynas.phases import train_worker

            return train_worker.work(job, run, mailbox)

        workers: Any = resources.workers  # Ray's annotation lacks the range
        elastic: dict[str, Any] = {"elastic_resize_monitor_interval_s": RESIZE_S} if isinstance(workers, tuple) else {}
        return trainer()(
            work,
            torch_config=FileRendezvous(folder=meeting) if on_loopback() else None,
            scaling_config=ScalingConfig(
                num_workers=workers,
                use_gpu=resources.gpus > 0,
                resources_per_worker=resources.of(1),
                **elastic,
            ),
            run_config=NamedRun(
                shown_name(self._run, job),
                folder=job.name,
                storage_path=self._run.at(CHECKPOINTS),
                storage_filesystem=self._run.filesystem,
                checkpoint_config=CheckpointConfig(
                    num_to_keep=max(2, job.recipe.checkpoints.keep), checkpoint_score_attribute="probe_accuracy"
                ),
                callbacks=[SendController(mailbox, job.name)],  # type: ignore[list-item]
            ),
        )

    def note(self, event: Event) -> None:
        """Note an event of the training loop."""
        if event["kind"] == "history":
            last = event["history"][-1] if event["history"] else None
            if last is not None and 0 <= self._furthest < event["step"] and last.get("seconds"):
                name = f"{self._run.name}/{self.job.name}"
                set_gauge("images_per_s", last["images"] / last["seconds"], name)
                set_gauge("loss", last["loss"], name)
            self._furthest = max(self._furthest, event["step"])

    def result(self) -> Trained | Exception | None:
        """Return the result of an attempt that has ended, or why there is none; None if another attempt has begun."""
        outcome = self._outcome
        if self.error is not None:
            return self.error
        if isinstance(outcome, TrainingFailedError):
            self._failures = 1 if self._furthest > self._reached else self._failures + 1
            self._reached = max(0, self._furthest)
            if self._failures > self._resources.max_failures:
                return UserError(
                    f"training failed for good ({_causes(outcome)}). The checkpoints are kept: run the same command "
                    f"again to go on ({self._run.name})"
                )
            self._progress(f"  {_causes(outcome)}: starting again from the newest checkpoint")
            self.begin()
            return None
        if isinstance(outcome, RayActorError):
            return ClusterError(f"Ray Train's controller was lost: {one_line(str(outcome))}")
        if isinstance(outcome, BaseException):
            return outcome if isinstance(outcome, Exception) else ClusterError(one_line(repr(outcome)))
        if outcome.return_value is None:
            self._progress("  a node is being taken away: saved, and starting again without it")
            self.begin()
            return None
        if outcome.checkpoint is None:
            return UserError(f"{self._run.name}: training ended without a checkpoint; run the same command again")
        with outcome.checkpoint.as_directory() as folder:
            return Trained(read_state(Path(folder) / STATE), *outcome.return_value)


def shown_name(run: Run, job: TrainingJob) -> str:
    """Return a training's name on the dashboard: `first-supernet`, or `tuned-0007-supernet` in a trial."""
    folders = PurePosixPath(run.root).parts
    first = len(folders) - 1
    while first >= 2 and folders[first - 1] in INNER:
        first -= 2
    return "-".join([*(folder for folder in folders[first:] if folder not in INNER), job.name])


def end(trainings: Iterable[_Training]) -> None:
    """End Ray Train's controllers, with their workers and their requests to the autoscaler."""
    controllers = [training.controller for training in trainings if training.controller is not None]
    if controllers:
        aborts = [controller.abort.remote() for controller in controllers]
        ray.wait(aborts, num_returns=len(aborts), timeout=10)


class _News:
    """The news of trainings: the workers' events, and what those wait for that have no workers yet.

    Args:
        running: trainings under way, by name.
    """

    def __init__(self, running: dict[str, _Training], resources: Resources, take: Take):
        self.mailbox = open_mailbox()
        self._running, self._resources, self._take = running, resources, take
        self._asked: Any = None  # pending answer of the mailbox
        self._began = self._looked = time.monotonic()

    def take(self, wait_s: float = 0.0) -> None:
        """Handle the events that have arrived, after waiting for them at most `wait_s` seconds."""
        self._asked = self._asked or self.mailbox.take.remote()
        if ray.wait([self._asked], timeout=wait_s)[0]:
            asked, self._asked = self._asked, None
            try:
                events, errors = ray.get(asked)
            except RayActorError:
                events, errors = [], {}  # only progress is lost: rows are in the checkpoints, too
            for name, event in events:
                if name in self._running:
                    self._handle(self._running[name], event)
            for name, (kind, message) in errors.items():
                if name in self._running:
                    self._running[name].error = ERRORS.get(kind, UserError)(message)
        self._look()

    def _handle(self, training: _Training, event: Event) -> None:
        if event["kind"] == CONTROLLER:
            training.controller = event["controller"]
            return
        training.started = True
        if event["kind"] == STARTED:
            event = {"kind": WAITING, "text": ""}
        training.note(event)
        self._take(training.job, event)

    def _look(self) -> None:
        """Show what the cluster lacks for trainings that have not started; end them after `WAIT_S` in vain."""
        now = time.monotonic()
        idle = [one for one in self._running.values() if not one.started and one.error is None]
        if len(idle) < len(self._running):
            self._began = now  # those that run will make room
        if not idle or now - self._looked < LOOK_S:
            return
        self._looked = now
        workers = self._resources.fewest_workers
        lack = describe_shortage(self._resources.of(workers * len(self._running)))
        if lack is None:
            self._began = now
        text = f"{workers} worker(s) wait for {lack}; for {duration(WAIT_S)} at most"
        for one in idle:
            self._take(one.job, {"kind": WAITING, "text": "workers are starting" if lack is None else text})
        if now - self._began > WAIT_S:
            for one in idle:
                one.error = UserError(
                    f"{workers} worker(s) need {lack}; waited {duration(WAIT_S)}: use fewer workers, or a "
                    "larger cluster"
                )
            end(idle)


def _causes(error: Exception) -> str:
    """Return the reasons why workers were lost, in one line."""
    failures = getattr(error, "worker_failures", None) or {}
    causes = {rank: str(cause).strip() for rank, cause in failures.items() if str(cause).strip()}
    told = {rank: why_lost(cause) or cause.splitlines()[-1] for rank, cause in causes.items()}
    text = "; ".join(f"worker {rank}: {why}" for rank, why in told.items())
    return text or str(error).strip().splitlines()[-1]
