"""Trainings of networks on their own, one after the other or side by side as Ray tasks, with progress of all of them.

What they give back is not kept here: see `raynas.phases.retrain`.
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
        arch: its architecture, in a space for its images.
        recipe: with the seed of this network.
        data: what to train on, at the run's image size.
        train_on: `train` or `train+search`.
        label: what progress lines call it.
        start: the network whose weights it starts from; None for fresh ones.
        size: of its images, where that is not the run's.
        checkpoints: a local folder that every try of this job sees; None keeps none.
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
        """What it will be."""
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
    """What a job gives back: weights by name, one history entry for each epoch, and the numbers of its row."""

    weights: dict[str, Tensor]
    history: list[Row]
    row: Row


def train_one(
    job: NetworkTraining, start: Mapping[str, Tensor] | None, on_event: Callable[[Row], None], device: str
) -> TrainedNetwork:
    """Train the network of a job in this process.

    Args:
        job: what to train.
        start: the weights to start from; None for fresh ones.
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
    if job.train_on == "train":  # else the search split has been trained on, and says nothing
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
    """What jobs are trained on, if that is in this process; None where they become Ray tasks."""
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
    """Train the networks of jobs, and give each as soon as it is finished.

    Args:
        jobs: what to train.
        starts: the weights that each starts from; None for fresh ones.
        parallel: how many at a time as Ray tasks; None for as many as there are CPUs (or GPUs), 1 without Ray.
        progress: called with lines of text.
        attempt: the block within which they train, told whether that is on a `cluster`.

    Raises:
        UserError: a job cannot be trained; the others are finished first where they are tasks.
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

            def put(event: Row) -> None:  # nothing is waited for: a waiting task lends its CPU to another one
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
                if ray.wait([news], timeout=0)[0]:  # the mailbox may take its time to start: it is not waited for
                    for event in ray.get(news)[0]:
                        states.event(event["label"], event)
                    news = mailbox.take.remote()
                for ref in ready:
                    job = running.pop(ref)
                    states.ended(job.label)
                    try:
                        yield job, ray.get(ref)
                    except ray.exceptions.RayTaskError as error:  # the others go on first
                        failed = error.cause if isinstance(error.cause, UserError) else error
        ray.kill(mailbox)
        if failed is not None:
            raise failed


@contextmanager
def _cancelled(running: Mapping[Any, NetworkTraining]) -> Iterator[None]:
    """Whatever ends the block early ends the tasks, which would go on in a cluster that outlives us."""
    import ray

    try:
        yield
    except BaseException:
        for ref in running:
            ray.cancel(ref, force=True)
        raise


class _States:
    """The states of all trainings under way, as that of one activity."""

    def __init__(self, jobs: Sequence[NetworkTraining], activity: Activity):
        self._activity = activity
        self._steps = {job.label: (0, 0) for job in jobs}  # done and in all
        self._states: dict[str, str] = {}

    def event(self, label: str, event: Row) -> None:
        """Take an event of a training's loop."""
        if event["kind"] != "message":
            self._steps[label] = event["step"], event["steps"]
            self._states[label] = f"{label}: {state_text(event)}"
            self._update()

    def ended(self, label: str) -> None:
        """Leave one out of the states."""
        self._states.pop(label, None)
        self._update()

    def _update(self) -> None:
        begun = [steps for steps in self._steps.values() if steps[1]]
        done, total = (sum(column) for column in zip(*begun, strict=True)) if begun else (0, 0)
        total = round(total / max(1, len(begun)) * len(self._steps))  # those that wait count like the others
        self._activity.update(done, "; ".join(self._states.values()), total)
