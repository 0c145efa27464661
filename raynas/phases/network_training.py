"""Trainings of single networks, one after the other or side by side as Ray tasks, with progress of all of them.

`raynas.phases.retrain` writes the results.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raynas.cluster.connection import ray_cluster
from raynas.cluster.mailbox import open_mailbox
from raynas.data.config import DataConfig
from raynas.data.images import decode
from raynas.data.load import load_data
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.phases.local_training import train_network
from raynas.progress.reporter import Activity, Progress, reporter
from raynas.results.schemas import Row
from raynas.runs.files import NETWORKS
from raynas.runs.networks import Network
from raynas.scoring.replica import device_name
from raynas.scoring.score_arch import score_arch
from raynas.space import Arch
from raynas.training.progress import state_text
from raynas.training.recipe import Recipe

Size = tuple[int, int]


@dataclass(frozen=True)
class NetworkTraining:
    """One network to be trained.

    Attributes:
        arch: architecture, in a space for its images.
        recipe: recipe with the seed of this network.
        data: training data, at the run's image size.
        train_on: `train` or `train+search`.
        label: name in progress lines.
        start: network with the initial weights; None for random ones.
        size: image size if it is not the run's.
        checkpoints: local folder for checkpoints that every attempt of this job sees; None for no checkpoints.
    """

    arch: Arch
    recipe: Recipe
    data: DataConfig
    train_on: str
    label: str
    start: Network | None = None
    size: Size | None = None
    checkpoints: str | None = None

    @property
    def network(self) -> Network:
        """The network that the job produces."""
        how = "scratch" if self.start is None else "finetuned" if self.start.path is None else "resized"
        if self.start is not None and self.start.path is not None:
            path = f"{self.start.path}-{how}"
        else:
            path = f"{NETWORKS}/{self.arch.id}-{how}-{self.recipe.seed}" + ("-all" if self.train_on != "train" else "")
        if self.size is not None:
            height, width = self.size
            path += f"-{height}" if height == width else f"-{height}x{width}"
        return Network(self.arch, how, self.recipe.seed, path)


@dataclass(frozen=True)
class TrainedNetwork:
    """Result of a job: weights by name, one history entry for each epoch, and the numbers of its row."""

    weights: dict[str, Tensor]
    history: list[Row]
    row: Row


def train_one(
    job: NetworkTraining, start: Mapping[str, Tensor] | None, on_event: Callable[[Row], None], device: str
) -> TrainedNetwork:
    """Train the network of a job in this process.

    Args:
        job: network to train.
        start: initial weights; None for random ones.
        on_event: called with progress events.
        device: `cpu` or `cuda`.
    """
    data = load_data(job.data)
    data = data if job.size is None else data.resized(job.size)
    space = job.arch.space.fix(job.arch)
    trained = train_network(
        space,
        data,
        job.recipe,
        out_dir=job.checkpoints,
        init=start,
        train_on=job.train_on,
        device=device,
        on_event=on_event,
    )
    accuracy = None
    if job.train_on == "train":  # else the search split is training data
        model = build_supernet(space)
        model.load_state_dict(trained.weights)
        pixels, labels = (tensor.to(device) for tensor in decode(data.search, space.input_size, space.channels))
        score = score_arch(model.to(device).eval(), space.smallest(), pixels, labels, data.normalisation)
        accuracy = float(score.top1.mean())
    row = {
        "accuracy": accuracy,
        "loss": trained.loss,
        "epochs": job.recipe.epochs,
        "seconds": trained.seconds,
        "data": data.fingerprint,
        "device": device_name(torch.device(device)),
    }
    return TrainedNetwork(trained.weights, trained.history, row)


def device_here(jobs: Sequence[NetworkTraining], parallel: int | None) -> str | None:
    """Return the device of jobs that train in this process; None if they become Ray tasks."""
    if parallel != 1 and len(jobs) > 1:
        return None
    return "cuda" if torch.cuda.is_available() else "cpu"


def train_all(
    jobs: Sequence[NetworkTraining],
    starts: Sequence[Mapping[str, Tensor] | None],
    parallel: int | None,
    progress: Progress,
    attempt: Callable[..., AbstractContextManager[None]],
) -> Generator[tuple[NetworkTraining, TrainedNetwork], None, None]:
    """Train the networks of jobs, and yield each as soon as it is finished.

    Args:
        jobs: networks to train.
        starts: initial weights of each; None for random ones.
        parallel: number of Ray tasks at a time; None for as many as there are CPUs (or GPUs), 1 to train without Ray.
        progress: called with lines of text.
        attempt: context manager to train within; its argument `cluster` is True for Ray tasks.

    Raises:
        UserError: a job cannot be trained; other Ray tasks are finished first.
    """
    if not jobs:
        return
    device = device_here(jobs, parallel)
    with reporter(progress).doing("retraining", unit="steps") as activity:
        states = _States(jobs, activity)
        if device is None:
            yield from _train_in_tasks(jobs, starts, parallel, states, attempt)
            return
        with attempt():
            for job, start in zip(jobs, starts, strict=True):
                result = train_one(job, start, partial(states.event, job.label), device)
                states.ended(job.label)
                yield job, result


def _train_in_tasks(
    jobs: Sequence[NetworkTraining],
    starts: Sequence[Mapping[str, Tensor] | None],
    parallel: int | None,
    states: _States,
    attempt: Callable[..., AbstractContextManager[None]],
) -> Iterator[tuple[NetworkTraining, TrainedNetwork]]:
    import ray

    with ray_cluster(cpus=min(parallel or 2, len(jobs))), attempt(cluster=True):
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        mailbox = open_mailbox()

        @ray.remote(num_cpus=1, num_gpus=gpus, max_retries=3)
        def train_job(job: NetworkTraining, start: Mapping[str, Tensor] | None) -> TrainedNetwork:
            torch.set_num_threads(1)
            device = "cuda" if torch.cuda.is_available() else "cpu"

            def put(event: Row) -> None:  # without waiting: a waiting task lends its CPU to another one
                mailbox.put.remote({"label": job.label, **event})

            return train_one(job, start, put, device)

        waiting = list(zip(jobs, starts, strict=True))
        running: dict[Any, NetworkTraining] = {}
        failed: Exception | None = None
        news = mailbox.take.remote()
        with _cancelled(running):
            while waiting or running:
                while waiting and (parallel is None or len(running) < parallel):
                    job, start = waiting.pop(0)
                    running[train_job.remote(job, start)] = job
                ready, _ = ray.wait(list(running), num_returns=1, timeout=0.5)
                if ray.wait([news], timeout=0)[0]:  # without waiting for the mailbox to start
                    for event in ray.get(news)[0]:
                        states.event(event["label"], event)
                    news = mailbox.take.remote()
                for ref in ready:
                    job = running.pop(ref)
                    states.ended(job.label)
                    try:
                        yield job, ray.get(ref)
                    except ray.exceptions.RayTaskError as error:  # raised after the others have finished
                        failed = error.cause if isinstance(error.cause, UserError) else error
        ray.kill(mailbox)
        if failed is not None:
            raise failed


@contextmanager
def _cancelled(running: Mapping[Any, NetworkTraining]) -> Iterator[None]:
    """Cancel the tasks if the block ends early; they would go on in a cluster that outlives this process."""
    import ray

    try:
        yield
    except BaseException:
        for ref in running:
            ray.cancel(ref, force=True)
        raise


class _States:
    """States of all running trainings, shown as one activity."""

    def __init__(self, jobs: Sequence[NetworkTraining], activity: Activity):
        self._activity = activity
        self._steps = {job.label: (0, 0) for job in jobs}  # done, total
        self._states: dict[str, str] = {}

    def event(self, label: str, event: Row) -> None:
        """Handle an event of a training loop."""
        if event["kind"] != "message":
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
        self._activity.update(done, "; ".join(self._states.values()), total)
