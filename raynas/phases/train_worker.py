"""One worker of the Ray Train job: the training loop, with checkpoints through Ray Train and events to the mailbox."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch

from raynas.cluster.mailbox import STARTED
from raynas.config import Document, validate
from raynas.errors import UserError
from raynas.phases.inputs import load_inputs
from raynas.phases.run_context import STATE, furthest, newest_here, read_weights
from raynas.phases.teachers import load_teachers
from raynas.presets.preset import Preset
from raynas.runs.run import Run
from raynas.space import Space
from raynas.training.context import DistributedContext, Event, State, read_state
from raynas.training.loop import train_loop


class RayContext(DistributedContext):
    """One Ray Train worker: checkpoints through `ray.train.report`, events to the mailbox.

    Args:
        mailbox: actor that receives the events.
        run: path or URI of the run directory, where a process without Ray may have left a newer checkpoint.
    """

    def __init__(self, mailbox: Any, run: str):
        super().__init__(device=ray.train.torch.get_device())
        self.mailbox, self.run = mailbox, run

    def event(self, event: Event) -> None:
        self.mailbox.put.remote(event)

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
        return furthest(newest, newest_here(Run(self.run)))


def work(config: dict[str, Any]) -> None:
    """Train, as one worker of the job.

    Args:
        config: `preset` and `space` as plain values, the `mailbox` for events, the `run` directory, and its file of
            initial weights (`init`) or None.
    """
    mailbox = config["mailbox"]
    if ray.get(mailbox.error.remote()) is not None:
        return  # a user's mistake stopped earlier workers
    context = RayContext(mailbox, config["run"])
    if context.rank == 0:
        context.event({"kind": STARTED})
    try:
        if context.device.type == "cpu":
            assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            torch.set_num_threads(max(1, int(assigned)))
        preset = validate(Preset, Document(config["preset"], "preset"))  # parts of the user's own are imported again
        space, data = load_inputs(preset, Space.from_dict(config["space"]))
        init = read_weights(Run(config["run"]), config["init"])
        teachers = load_teachers(preset.recipe, data)
        train_loop(space, data, preset.plan, preset.recipe, context, init=init, teachers=teachers)
    except UserError as error:
        ray.get(mailbox.fail.remote(type(error).__name__, str(error)))
        if context.world_size > 1:
            raise  # other workers may wait for this one: Ray ends them, and restarts all once
