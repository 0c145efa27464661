"""Trainings of single networks, one after the other or side by side, with progress of all of them.

`raynas.phases.retrain` writes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from raynas.cluster.connection import ray_cluster
from raynas.cluster.resources import Resources
from raynas.data.config import DataConfig
from raynas.errors import UserError
from raynas.phases.teachers import load_teachers
from raynas.phases.training_job import Trained, TrainingJob, train_here
from raynas.progress.reporter import Activity, Progress, reporter
from raynas.runs.files import NETWORKS
from raynas.runs.networks import PRETRAINED, TRANSFERRED, Network
from raynas.runs.run import Run
from raynas.space import Arch
from raynas.training.context import Event
from raynas.training.plan import Plan
from raynas.training.progress import WAITING, state_text
from raynas.training.recipe import Recipe

Size: TypeAlias = tuple[int, int]
Results: TypeAlias = Generator[tuple[TrainingJob, Trained | Exception], None, None]


@dataclass(frozen=True)
class NetworkTraining:
    """One network to be trained.

    Attributes:
        arch: architecture, in a space for its images.
        data: training data, at the run's image size.
        label: name in progress lines.
        start: network with the initial weights; None for random ones.
        size: image size if it is not the run's.
        name: name among trainings of the same arch and seed with other recipes; None for the only one.
    """

    arch: Arch
    recipe: Recipe
    data: DataConfig
    train_on: str
    label: str
    start: Network | None = None
    size: Size | None = None
    name: str | None = None

    @property
    def network(self) -> Network:
        """The network that the training produces."""
        how = "scratch" if self.start is None else "finetuned" if self.start.path is None else "resized"
        if self.start is not None and self.start.how == PRETRAINED:
            how = TRANSFERRED
        if self.start is not None and how == "resized":
            path = f"{self.start.path}-{how}"
        else:
            path = f"{NETWORKS}/{self.arch.id}-{how}-{self.recipe.seed}" + ("-all" if self.train_on != "train" else "")
            path += f"-{self.name}" if self.name is not None else ""
        if self.size is not None:
            height, width = self.size
            path += f"-{height}" if height == width else f"-{height}x{width}"
        return Network(self.arch, how, self.recipe.seed, path)

    @property
    def job(self) -> TrainingJob:
        """The training itself; the search split is scored unless it is trained on."""
        space, scored = self.arch.space.fix(self.arch), self.train_on == "train"
        recipe = self.recipe.model_copy(update={"drop_for": "all"})  # alone, it is the largest
        return TrainingJob(self.network.name, space, self.data, Plan(), recipe, self.train_on, self.start, scored)


def train_all(
    run: Run,
    trainings: Sequence[NetworkTraining],
    resources: Resources,
    parallel: int | None,
    progress: Progress,
    attempt: Callable[..., AbstractContextManager[None]],
) -> Generator[tuple[NetworkTraining, Trained], None, None]:
    """Train networks, and yield each as soon as it is finished.

    Args:
        resources: workers of each training; without workers this process trains them one after the other.
        parallel: number of trainings side by side; None for as many as the cluster has room for.
        attempt: context manager to train within; its argument `cluster` is True if Ray is used.

    Raises:
        UserError: a network cannot be trained; the others are finished first.
    """
    by_name = {training.job.name: training for training in trainings}
    jobs, failed = [training.job for training in trainings], None
    with reporter(progress).doing("retraining", unit="steps") as activity:
        states = _States([training.label for training in trainings], activity, progress)

        def take(job: TrainingJob, event: Event) -> None:
            states.event(by_name[job.name].label, event)

        results = _one_by_one(run, jobs, resources, take, attempt)
        if resources.workers:
            results = _side_by_side(run, jobs, resources, parallel, take, progress, attempt)
        with closing(results):
            for job, result in results:
                training = by_name[job.name]
                states.ended(training.label)
                if isinstance(result, Exception):
                    failed = failed or result
                else:
                    yield training, result
    if failed is not None:
        raise failed


def _one_by_one(
    run: Run,
    jobs: Sequence[TrainingJob],
    resources: Resources,
    take: Callable[[TrainingJob, Event], None],
    attempt: Callable[..., AbstractContextManager[None]],
) -> Results:
    with attempt():
        for job in jobs:
            data = job.load_data()
            try:
                yield (
                    job,
                    train_here(run, job, data, load_teachers(job.recipe, data, run), resources, partial(take, job)),
                )
            except UserError as error:
                yield job, error


def _side_by_side(
    run: Run,
    jobs: Sequence[TrainingJob],
    resources: Resources,
    parallel: int | None,
    take: Callable[[TrainingJob, Event], None],
    progress: Progress,
    attempt: Callable[..., AbstractContextManager[None]],
) -> Results:
    together = min(parallel or 1, len(jobs))
    cluster = ray_cluster(resources.cpus * resources.most_workers * together, progress, dashboard=True)
    with cluster, attempt(cluster=True):
        from raynas.phases.ray_train import fit_all  # local: it imports Ray

        yield from fit_all(run, jobs, resources, parallel, take, progress)


class _States:
    """States of all trainings under way, shown as one activity."""

    def __init__(self, labels: Sequence[str], activity: Activity, progress: Progress):
        self._activity, self._progress = activity, progress
        self._steps = {label: (0, 0) for label in labels}  # done, total
        self._states: dict[str, str] = {}

    def event(self, label: str, event: Event) -> None:
        """Handle an event of a training."""
        if event["kind"] == "message":
            self._progress(f"{label}: {event['text'].strip()}")
            return
        if event["kind"] == WAITING:
            self._states[label] = f"{label}: {event['text']}" if event["text"] else label
        else:
            self._steps[label] = event["step"], event["steps"]
            self._states[label] = f"{label}: {state_text(event)}"
        self._update()

    def ended(self, label: str) -> None:
        """Remove a training from the shown states."""
        self._states.pop(label, None)
        self._update()

    def _update(self) -> None:
        begun = [steps for steps in self._steps.values() if steps[1]]
        done, total = (sum(column) for column in zip(*begun, strict=True)) if begun else (0, 0)
        total = round(total / max(1, len(begun)) * len(self._steps))  # waiting trainings count like the others
        self._activity.update(done, "; ".join(self._states.values()), total or None)  # None while workers start
