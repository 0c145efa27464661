"""One worker of Ray Train: the training loop, with checkpoints through Ray Train and events to the mailbox."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from raynas.cluster.mailbox import STARTED
from raynas.errors import UserError
from raynas.phases.run_context import STATE, furthest, newest_here
from raynas.phases.teachers import load_teachers
from raynas.phases.training_job import TrainingJob, carry_out, score
from raynas.runs.run import Run
from raynas.training.context import DistributedContext, Event, Interrupted, State, read_state


class RayContext(DistributedContext):
    """One Ray Train worker: checkpoints through `ray.train.report`, events to the mailbox.

    Args:
        mailbox: actor that receives the events.
        run: run directory, where a process without Ray may have left a newer checkpoint.
    """

    def __init__(self, training: str, mailbox: Any, run: Run):
        # Ray hides no GPUs from workers that asked for none.
        super().__init__(device=ray.train.torch.get_device() if ray.get_gpu_ids() else "cpu")
        self.training, self.mailbox, self.run = training, mailbox, run
        watched = os.environ.get("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "1") != "0"  # a local Ray has no such nodes
        self._announced = getattr(ray.train, "get_preemption_info", None) if watched else None  # new in Ray 2.60

    def must_end(self) -> bool:
        """Return True if the node of any worker is about to be taken away; the workers wait for each other."""
        return self._announced is not None and self._announced() is not None

    def event(self, event: Event) -> None:
        self.mailbox.put.remote(self.training, event)

    def save(self, state: State, score: float) -> None:
        metrics = {"epoch": state["epoch"], "step": state["step"], "probe_accuracy": score}
        if self.rank:
            ray.train.report(metrics)
            return
        with tempfile.TemporaryDirectory() as folder:
            torch.save(state, Path(folder) / STATE)
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))

    def load(self) -> State | None:
        checkpoint, newest = ray.train.get_checkpoint(), None
        if checkpoint is not None:
            with checkpoint.as_directory() as folder:
                newest = read_state(Path(folder) / STATE)
        return furthest(newest, newest_here(self.run, self.training))


def work(job: TrainingJob, uri: str, mailbox: Any) -> tuple[float | None, str] | None:
    """Train, as one worker, and return what `score` does.

    None is returned on other ranks than 0, after a user's mistake, and if a node is being taken away: training is saved
    then, and not finished.

    Args:
        uri: path or URI of the run directory.
    """
    if ray.get(mailbox.error.remote(job.name)) is not None:
        return None  # a user's mistake stopped earlier workers
    run = Run(uri)
    context = RayContext(job.name, mailbox, run)
    if context.rank == 0:
        context.event({"kind": STARTED})
    try:
        if context.device.type == "cpu":
            assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            torch.set_num_threads(max(1, int(assigned)))
        data = job.load_data()
        state = carry_out(job, run, data, load_teachers(job.recipe, data, run), context)
        return None if context.rank else score(job, data, state, context.device)
    except Interrupted:
        return None
    except UserError as error:
        ray.get(mailbox.fail.remote(job.name, type(error).__name__, str(error)))
        if context.world_size > 1:
            raise  # other workers may wait for this one: Ray ends them, and restarts all once
        return None
